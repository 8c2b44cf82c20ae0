"""The C library's allocator, tuned for a process that does nothing but train."""

from __future__ import annotations

import ctypes

_MAX_ARENAS = 2


def retain_freed_memory() -> None:
    """Have glibc keep large freed blocks instead of returning them to the kernel.

    Every step frees megabytes and allocates them again; each return to the kernel costs page
    faults, which show in the step time. It affects the whole process, so it is for `celu run`, not
    for a program that imports celu.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, top_pad, mmap_threshold, arena_max = -1, -2, -3, -8  # names of malloc.h
    mallopt(mmap_threshold, 32 << 20)  # the maximum of glibc
    mallopt(trim_threshold, 512 << 20)
    mallopt(top_pad, 64 << 20)
    # By default threads use up to 8 arenas per core; each retains what a flood made it allocate.
    mallopt(arena_max, _MAX_ARENAS)
