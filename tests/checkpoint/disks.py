"""Disks for tests: one that does not sync, and one that fails at a given call."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from celu.checkpoint.disk import BytesLike, RealDisk


class QuickDisk(RealDisk):
    """Syncs nothing: for tests that are not about power cuts."""

    def write(self, path: Path, parts: Iterable[BytesLike]) -> None:
        path.write_bytes(b"".join(bytes(part) for part in parts))

    def sync_folder(self, path: Path) -> None:
        assert path.is_dir()


class FailingDisk(QuickDisk):
    """Fails at its k-th write operation and, if `permanent`, at every later one.

    A write that fails leaves half of the file.
    """

    def __init__(self, fails_at: int, *, permanent: bool) -> None:
        self._fails_at = fails_at
        self._permanent = permanent
        self.calls = 0

    def make_folder(self, path: Path) -> None:
        self._count()
        super().make_folder(path)

    def write(self, path: Path, parts: Iterable[BytesLike]) -> None:
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
        if self.calls == self._fails_at or (self._permanent and self.calls > self._fails_at):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
