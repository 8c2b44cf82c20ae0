"""Atomic creation of a folder: it appears under its name complete, or not at all.

The folder is written under a hidden, locked name next to its own, and then renamed. The next
process removes the leftovers of an interrupted one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from celu.errors import ConfigError


class NewFolder:
    """Use as a context manager: write to `path`, then `publish` renames it.

    Without `publish` nothing is left. With `replace`, an existing folder that has a file `marker`
    is replaced. With `private`, the folder and its files are readable by their owner only. Raises
    ConfigError if the name is taken by anything else, or if another process is writing the folder.
    """

    def __init__(
        self, out: Path, marker: str, *, replace: bool = False, private: bool = False
    ) -> None:
        self._out = out
        self._marker = marker
        self.path = out.parent / f".{out.name}.partial"
        self._old = out.parent / f".{out.name}.old"
        self._replace = replace
        self._private = private
        self._lock = -1
        self._parents: list[Path] = []

    def __enter__(self) -> NewFolder:
        if not self._out.name:
            raise ConfigError(f"{self._out}: expected the name of a new folder")
        self._check()
        self._parents = [p for p in (self._out.parent, *self._out.parent.parents) if not p.exists()]
        try:
            self._out.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._acquire_lock()
        except OSError as error:
            raise ConfigError(f"{self._out}: cannot be written: {error.strerror}") from None
        try:
            self._recover()
            if self._private:
                self.path.chmod(0o700)
            for leftover in self.path.iterdir():
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._lock < 0:
            return
        if self.path.exists() and self._is_ours():
            shutil.rmtree(self.path)
        os.close(self._lock)
        for parent in self._parents:  # those we created, if they are still empty
            with suppress(OSError):
                parent.rmdir()

    def publish(self) -> None:
        """Flush everything in it to disk and rename it to its final name."""
        for file in self.path.iterdir():
            if self._private:
                file.chmod(0o600)  # until now, the folder's own mode protected it
            sync(file)
        sync(self.path)
        self._check()
        if self._out.exists():
            self._out.rename(self._old)
        self.path.rename(self._out)
        sync(self._out.parent)
        shutil.rmtree(self._old, ignore_errors=True)

    def _check(self) -> None:
        if not (self._out.exists() or self._out.is_symlink()):
            return
        if not (self._out / self._marker).is_file() or self._out.is_symlink():
            raise ConfigError(
                f"{self._out}: already exists and has no {self._marker}, so it is not replaced; "
                "choose another name"
            )
        if not self._replace:
            raise ConfigError(
                f"{self._out}: already exists and has a {self._marker}; to replace it, use --force"
            )

    def _acquire_lock(self) -> int:
        while True:
            self.path.mkdir(exist_ok=True)
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                raise ConfigError(
                    f"{self._out}: another process is writing it; wait for it to end"
                ) from None
            self._lock = lock
            # The folder may have been renamed or removed between opening and locking it.
            if self.path.exists() and self._is_ours():
                return lock
            os.close(lock)

    def _is_ours(self) -> bool:
        return os.path.samestat(self.path.stat(), os.fstat(self._lock))

    def _recover(self) -> None:
        """Roll back a replacement that was killed between its two renames."""
        if self._old.exists():
            if self._out.exists():
                shutil.rmtree(self._old)
            else:
                self._old.rename(self._out)
                self._check()


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
