"""Disks for tests: one that does not wait for the platter, and one that fails when told to."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from celu.checkpoint.disk import Part, RealDisk


class QuickDisk(RealDisk):
    """Syncs nothing: for tests that are not about power cuts."""

    def write(self, path: Path, parts: Iterable[Part]) -> None:
        path.write_bytes(b"".join(bytes(part) for part in parts))

    def sync_folder(self, path: Path) -> None:
        assert path.is_dir()


class FailingDisk(QuickDisk):
    """Fails at the k-th thing that it is asked to change, and, if it is full, ever after.

    What it was writing then is there in part.
    """

    def __init__(self, fails_at: int, *, for_good: bool) -> None:
        self._fails_at = fails_at
        self._for_good = for_good
        self.calls = 0

    def make_folder(self, path: Path) -> None:
        self._count()
        super().make_folder(path)

    def write(self, path: Path, parts: Iterable[Part]) -> None:
        data = b"".join(bytes(part) for part in parts)
        try:
            self._count()
        except OSError:
            path.write_bytes(data[: len(data) // 2])
            raise
        path.write_bytes(data)

    def sync_folder(self, path: Path) -> None:
        self._count()

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._fails_at or (self._for_good and self.calls > self._fails_at):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
