"""The file operations that checkpoints need, and their implementation on the local disk.

All durable writes go through `Disk`, so that tests can substitute a disk that tears writes, fills
up or loses what was not synced. Atomicity is the callers' job: write a temporary file, rename it,
sync the folder. What it creates is readable by its owner only: it holds weights.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from celu import open_files

BytesLike = bytes | memoryview
_PART_BYTES = 1 << 22


class Disk(Protocol):
    """File operations; each raises OSError when it fails."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents, if missing."""
        ...

    def names(self, path: Path) -> list[str]:
        """The names in a folder, hidden ones included; empty if the folder is missing."""
        ...

    def read(self, path: Path) -> bytes:
        """A file's content."""
        ...

    def parts(self, path: Path) -> Iterator[bytes]:
        """A file's content, in parts."""
        ...

    def write(self, path: Path, parts: Iterable[BytesLike]) -> None:
        """Write a file and sync it: its content survives a power cut."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Sync a folder: files created, renamed and removed in it survive a power cut."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or folder atomically; an existing file is replaced."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with its content, if it exists."""
        ...


def _open_private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that it creates is readable by its owner only."""
    return os.open(path, flags, 0o600)


class RealDisk:
    """The local disk; see `Disk`."""

    def make_folder(self, path: Path) -> None:
        """See `Disk`."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """See `Disk`."""
        if not path.is_dir():
            return []
        return open_files.retry(lambda: sorted(inside.name for inside in path.iterdir()))

    def read(self, path: Path) -> bytes:
        """See `Disk`."""
        return open_files.retry(path.read_bytes)

    def parts(self, path: Path) -> Iterator[bytes]:
        """See `Disk`."""
        with open_files.retry(lambda: path.open("rb")) as file:
            while part := file.read(_PART_BYTES):
                yield part

    def write(self, path: Path, parts: Iterable[BytesLike]) -> None:
        """See `Disk`."""
        with open_files.retry(lambda: open(path, "wb", opener=_open_private)) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())

    def sync_folder(self, path: Path) -> None:
        """See `Disk`."""
        descriptor = open_files.retry(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """See `Disk`."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        if path.is_dir() and not path.is_symlink():
            open_files.retry(lambda: shutil.rmtree(path))
        else:
            path.unlink(missing_ok=True)


def write_hashed(disk: Disk, path: Path, parts: Iterable[BytesLike]) -> str:
    """Write and sync a file; return the SHA-256 digest of its content."""
    digest = hashlib.sha256()

    def hashed() -> Iterator[BytesLike]:
        for part in parts:
            digest.update(part)
            yield part

    disk.write(path, hashed())
    return digest.hexdigest()
