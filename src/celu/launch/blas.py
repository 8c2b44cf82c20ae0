"""The threads of NumPy's linear algebra, limited as PyTorch's are.

OpenBLAS reads its environment variable once, when NumPy is imported. Later, only a call sets it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

_MAPS = Path("/proc/self/maps")  # the libraries that this process has loaded
_SET_THREADS = (
    "scipy_openblas_set_num_threads64_",  # in the wheels of NumPy 2
    "openblas_set_num_threads64_",  # in those of NumPy 1.26
    "openblas_set_num_threads",  # of a distribution
)


def limit_blas_threads(num_threads: int) -> int:
    """Let OpenBLAS use this many threads; returns in how many libraries it was set.

    With more, a product of a few rows waits for a second thread to be scheduled, which takes
    milliseconds on a busy machine. Another library than OpenBLAS is left as it is.
    """
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return 0
    paths = {line.split(maxsplit=5)[-1] for line in lines if "openblas" in line}
    num_set = 0
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
        except OSError:  # a mapped file of that name
            continue
        name = next((name for name in _SET_THREADS if hasattr(library, name)), None)
        if name is not None:
            library[name](num_threads)
            num_set += 1
    return num_set
