"""A disk in memory that keeps to the letter of what a disk promises, and to nothing more.

What was written and not synced is in the page cache: a killed process loses none of it, a power cut
all or some. A folder's entries change in order, and a power cut leaves them as they were after the
last sync or after any change since. A file's bytes outlast a power cut once its sync went well; one
whose sync failed may hold any part of them, also after another sync.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from celu.checkpoint.disk import BytesLike


@dataclass(frozen=True)
class Interruption:
    """What an operation ends with, and which part of a write is done by then."""

    error: BaseException
    fraction: float


class _File:
    """Bytes as a program sees them, and as they are on the platter."""

    def __init__(self) -> None:
        self.seen = b""
        self.kept: bytes | None = b""  # None: any beginning of what is seen

    def cut(self, chance: random.Random) -> None:
        if self.kept is None:
            self.seen = self.seen[: chance.randrange(len(self.seen) + 1)]
        else:
            self.seen = self.kept
        self.kept = self.seen


class _Folder:
    """Entries as they were after the last sync and after each change since."""

    def __init__(self) -> None:
        self.states: list[dict[str, _File | _Folder]] = [{}]

    @property
    def entries(self) -> dict[str, _File | _Folder]:
        return self.states[-1]

    def change(self, **entries: _File | _Folder | None) -> None:
        """Set entries, or remove them (None), all at once."""
        changed = {n: e for n, e in {**self.entries, **entries}.items() if e is not None}
        self.states.append(changed)

    def sync(self) -> None:
        self.states = self.states[-1:]

    def cut(self, chance: random.Random) -> None:
        self.states = [self.states[chance.randrange(len(self.states))]]
        for entry in self.entries.values():
            entry.cut(chance)


class SimDisk:
    """One machine's disk; see `Disk`.

    `interrupt` is asked before each operation that changes something, by its name. What it gives is
    raised instead; a write gets so far before. `sync_fails` is asked at each sync.
    """

    def __init__(self) -> None:
        self._root = _Folder()
        self.interrupt: Callable[[str], Interruption | None] = lambda operation: None
        self.sync_fails: Callable[[], bool] = lambda: False

    def make_folder(self, path: Path) -> None:
        """See `Disk`."""
        self._begin("make_folder")
        folder = self._root
        for name in _parts(path):
            if name not in folder.entries:
                folder.change(**{name: _Folder()})
            folder = _as_folder(folder.entries[name], path)

    def names(self, path: Path) -> list[str]:
        """See `Disk`."""
        found = self._find(path)
        return sorted(found.entries) if isinstance(found, _Folder) else []

    def read(self, path: Path) -> bytes:
        """See `Disk`."""
        found = self._find(path)
        if not isinstance(found, _File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return found.seen

    def write(self, path: Path, parts: Iterable[BytesLike]) -> None:
        """See `Disk`."""
        interruption = self.interrupt("write")
        folder = self._folder(path.parent)
        file = folder.entries.get(path.name)
        if not isinstance(file, _File):
            file = _File()
            folder.change(**{path.name: file})
        content = b"".join(bytes(part) for part in parts)
        file.kept = None
        if interruption is not None:
            file.seen = content[: int(interruption.fraction * (len(content) + 1))]
            raise interruption.error
        file.seen = content
        if self.sync_fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        file.kept = content

    def sync_folder(self, path: Path) -> None:
        """See `Disk`."""
        self._begin("sync_folder")
        if self.sync_fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        self._folder(path).sync()

    def rename(self, old: Path, new: Path) -> None:
        """See `Disk`; within one folder."""
        self._begin("rename")
        folder = self._folder(old.parent)
        if old.parent != new.parent or old.name not in folder.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
        there = folder.entries.get(new.name)
        if isinstance(there, _Folder) and there.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(new))
        folder.change(**{old.name: None, new.name: folder.entries[old.name]})

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        self._begin("remove")
        found = self._find(path)
        if isinstance(found, _Folder):
            for name in sorted(found.entries):
                self.remove(path / name)
        if found is not None:
            self._folder(path.parent).change(**{path.name: None})

    def cut_power(self, chance: random.Random) -> None:
        """Everything is as it is on the platter, whatever chance makes of that."""
        self._root.cut(chance)

    def rot(self, chance: random.Random, folder: str) -> str | None:
        """Flip one bit of a file below a folder of this name, at rest; the file's path."""
        files = [(path, file) for path, file in self._files() if folder in path.parts]
        files = [(path, file) for path, file in files if file.seen]
        if not files:
            return None
        path, file = files[chance.randrange(len(files))]
        place = chance.randrange(len(file.seen) * 8)
        flipped = bytearray(file.seen)
        flipped[place // 8] ^= 1 << place % 8
        file.seen = bytes(flipped)
        file.kept = None if file.kept is None else file.seen
        return str(path)

    def _begin(self, operation: str) -> None:
        interruption = self.interrupt(operation)
        if interruption is not None:
            raise interruption.error

    def _files(self) -> Iterator[tuple[PurePath, _File]]:
        folders: list[tuple[PurePath, _Folder]] = [(PurePath("/"), self._root)]
        while folders:
            path, folder = folders.pop()
            for name, entry in folder.entries.items():
                if isinstance(entry, _Folder):
                    folders.append((path / name, entry))
                else:
                    yield path / name, entry

    def _find(self, path: Path) -> _File | _Folder | None:
        found: _File | _Folder | None = self._root
        for name in _parts(path):
            found = found.entries.get(name) if isinstance(found, _Folder) else None
        return found

    def _folder(self, path: Path) -> _Folder:
        return _as_folder(self._find(path), path)


def _parts(path: Path) -> tuple[str, ...]:
    return path.parts[1:] if path.is_absolute() else path.parts


def _as_folder(found: _File | _Folder | None, path: Path) -> _Folder:
    if not isinstance(found, _Folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return found
