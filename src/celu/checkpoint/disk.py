"""The few things that keeping a run asks of a disk, and the disk of this machine.

Everything durable goes through `Disk`, so that one which tears, fills up or forgets can be put in
its place. What keeps a file whole over a power cut is the order of its callers' calls: write aside,
rename, sync the folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

Part = bytes | memoryview


class Disk(Protocol):
    """Raises OSError where something cannot be done."""

    def make_folder(self, path: Path) -> None:
        """Make a folder, and those above it, unless it is there."""
        ...

    def names(self, path: Path) -> list[str]:
        """What a folder holds, hidden things included; nothing where there is none."""
        ...

    def read(self, path: Path) -> bytes:
        """The whole of a file."""
        ...

    def write(self, path: Path, parts: Iterable[Part]) -> None:
        """Write a file from its beginning and sync it: its bytes outlast a power cut."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Make what was made, renamed and removed in a folder outlast a power cut."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or folder another name in one go; a file of that name is replaced."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder and all in it, if it is there."""
        ...


class RealDisk:
    """This machine's; see `Disk`."""

    def make_folder(self, path: Path) -> None:
        """See `Disk`."""
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """See `Disk`."""
        return sorted(inside.name for inside in path.iterdir()) if path.is_dir() else []

    def read(self, path: Path) -> bytes:
        """See `Disk`."""
        return path.read_bytes()

    def write(self, path: Path, parts: Iterable[Part]) -> None:
        """See `Disk`."""
        with path.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())

    def sync_folder(self, path: Path) -> None:
        """See `Disk`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
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
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
