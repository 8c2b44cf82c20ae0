"""A folder that appears under its name complete, or not at all.

It is made under a hidden name beside its own, which is locked meanwhile, then renamed. What an
interrupted run left there is removed by the next.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from celu.errors import ConfigError


class NewFolder:
    """Use as a context manager: `path` is where to write, `publish` gives it its name.

    Without `publish` nothing is left. With `replace`, a folder that stands under the name and
    holds the file `marker` is replaced; anything else there is refused, as is a folder that
    another process is making.
    """

    def __init__(self, out: Path, marker: str, *, replace: bool = False) -> None:
        self._out = out
        self._marker = marker
        self.path = out.parent / f".{out.name}.partial"
        self._old = out.parent / f".{out.name}.old"
        self._replace = replace
        self._lock = -1
        self._parents: list[Path] = []

    def __enter__(self) -> NewFolder:
        if not self._out.name:
            raise ConfigError(f"{self._out}: expected the name of a folder to make")
        self._check()
        self._parents = [p for p in (self._out.parent, *self._out.parent.parents) if not p.exists()]
        try:
            self._out.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
        except OSError as error:
            raise ConfigError(f"{self._out}: expected to write it, got: {error.strerror}") from None
        try:
            self._recover()
            for left in self.path.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
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
        for parent in self._parents:  # those we made, unless something stands in them
            with suppress(OSError):
                parent.rmdir()

    def publish(self) -> None:
        """Make everything in it durable, and give the folder its name."""
        for file in self.path.iterdir():
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
                f"{self._out}: expected nothing there yet, got something without {self._marker}"
            )
        if not self._replace:
            raise ConfigError(
                f"{self._out}: expected nothing there yet, got a folder with {self._marker}; "
                "to replace it say --force"
            )

    def _locked(self) -> int:
        while True:
            self.path.mkdir(exist_ok=True)
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                raise ConfigError(
                    f"{self._out}: expected to be alone, got another process that is making it"
                ) from None
            self._lock = lock
            # The folder may have been renamed or removed between opening and locking it.
            if self.path.exists() and self._is_ours():
                return lock
            os.close(lock)

    def _is_ours(self) -> bool:
        return os.path.samestat(self.path.stat(), os.fstat(self._lock))

    def _recover(self) -> None:
        """Undo a replacement that was killed between its two renames."""
        if self._old.exists():
            if self._out.exists():
                shutil.rmtree(self._old)
            else:
                self._old.rename(self._out)
                self._check()


def sync(path: Path) -> None:
    """Have a file or folder on the disk before going on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
