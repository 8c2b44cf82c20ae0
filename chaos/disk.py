"""A disk in memory with exactly the durability that POSIX guarantees, and no more.

Writes without a sync are in the page cache: a killed process loses none of them, a power cut all or
some. A folder's entries change in order, and a power cut leaves them as they were after the last
sync or after any later change. A file's bytes survive a power cut once its sync succeeded; after a
failed sync the file may hold any prefix of them, also after another sync.
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
    """The error that an operation raises, and the fraction of a write that is done before."""

    error: BaseException
    fraction: float


class _File:
    """A file's bytes in the page cache, and those that are durable."""

    def __init__(self) -> None:
        self.cached = b""
        self.durable: bytes | None = b""  # None: any prefix of the cached bytes

    def cut_power(self, rng: random.Random) -> None:
        if self.durable is None:
            self.cached = self.cached[: rng.randrange(len(self.cached) + 1)]
        else:
            self.cached = self.durable
        self.durable = self.cached


class _Folder:
    """A folder's entries after the last sync and after each later change."""

    def __init__(self) -> None:
        self.states: list[dict[str, _File | _Folder]] = [{}]

    @property
    def entries(self) -> dict[str, _File | _Folder]:
        return self.states[-1]

    def change(self, **entries: _File | _Folder | None) -> None:
        """Set entries, or remove them (None), in one atomic change."""
        changed = {n: e for n, e in {**self.entries, **entries}.items() if e is not None}
        self.states.append(changed)

    def sync(self) -> None:
        self.states = self.states[-1:]

    def cut_power(self, rng: random.Random) -> None:
        self.states = [self.states[rng.randrange(len(self.states))]]
        for entry in self.entries.values():
            entry.cut_power(rng)


class SimDisk:
    """One machine's disk; see `Disk`.

    `interrupt` is called with the name of each operation that changes something, and may return an
    error to raise; a write is then done in part. `sync_fails` is called at each sync.
    """

    def __init__(self) -> None:
        self._root = _Folder()
        self.interrupt: Callable[[str], Interruption | None] = lambda operation: None
        self.sync_fails: Callable[[], bool] = lambda: False

    def make_folder(self, path: Path) -> None:
        """See `Disk`."""
        self._check_interrupt("make_folder")
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
        return found.cached

    def parts(self, path: Path) -> Iterator[bytes]:
        """See `Disk`."""
        yield self.read(path)

    def write(self, path: Path, parts: Iterable[BytesLike]) -> None:
        """See `Disk`."""
        interruption = self.interrupt("write")
        folder = self._folder(path.parent)
        file = folder.entries.get(path.name)
        if not isinstance(file, _File):
            file = _File()
            folder.change(**{path.name: file})
        content = b"".join(bytes(part) for part in parts)
        file.durable = None
        if interruption is not None:
            file.cached = content[: int(interruption.fraction * (len(content) + 1))]
            raise interruption.error
        file.cached = content
        if self.sync_fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        file.durable = content

    def append(self, path: Path, content: bytes) -> None:
        """Add bytes to a file without a sync; it is created if it is missing."""
        interruption = self.interrupt("append")
        folder = self._folder(path.parent)
        file = folder.entries.get(path.name)
        if not isinstance(file, _File):
            file = _File()
            folder.change(**{path.name: file})
        file.durable = None
        if interruption is not None:
            file.cached += content[: int(interruption.fraction * (len(content) + 1))]
            raise interruption.error
        file.cached += content

    def truncate(self, path: Path, size: int) -> None:
        """Drop all but the first bytes of a file, without a sync."""
        self._check_interrupt("truncate")
        file = self._find(path)
        assert isinstance(file, _File)
        file.cached, file.durable = file.cached[:size], None

    def sync_folder(self, path: Path) -> None:
        """See `Disk`."""
        self._check_interrupt("sync_folder")
        if self.sync_fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        self._folder(path).sync()

    def rename(self, old: Path, new: Path) -> None:
        """See `Disk`; within one folder."""
        self._check_interrupt("rename")
        folder = self._folder(old.parent)
        if old.parent != new.parent or old.name not in folder.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
        existing = folder.entries.get(new.name)
        if isinstance(existing, _Folder) and existing.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(new))
        folder.change(**{old.name: None, new.name: folder.entries[old.name]})

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        self._check_interrupt("remove")
        found = self._find(path)
        if isinstance(found, _Folder):
            for name in sorted(found.entries):
                self.remove(path / name)
        if found is not None:
            self._folder(path.parent).change(**{path.name: None})

    def cut_power(self, rng: random.Random) -> None:
        """Lose the page cache; where several outcomes are possible, choose one at random."""
        self._root.cut_power(rng)

    def flip_bit(self, rng: random.Random, folder: str) -> str | None:
        """Flip a random bit of a file below a folder of this name; returns the file's path."""
        files = [(path, file) for path, file in self._files() if folder in path.parts]
        files = [(path, file) for path, file in files if file.cached]
        if not files:
            return None
        path, file = files[rng.randrange(len(files))]
        position = rng.randrange(len(file.cached) * 8)
        flipped = bytearray(file.cached)
        flipped[position // 8] ^= 1 << position % 8
        file.cached = bytes(flipped)
        file.durable = None if file.durable is None else file.cached
        return str(path)

    def damage(self, path: Path, change: Callable[[bytes], bytes]) -> None:
        """Change the bytes of a file, as a failing disk does, also those that are durable."""
        file = self._find(path)
        if isinstance(file, _File):
            file.cached = change(file.cached)
            file.durable = None if file.durable is None else file.cached

    def lose(self, path: Path) -> None:
        """Lose a file or a folder with its content, also after a power cut."""
        for entries in self._folder(path.parent).states:
            entries.pop(path.name, None)

    def _check_interrupt(self, operation: str) -> None:
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
