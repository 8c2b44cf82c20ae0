"""The key of a guest's randomized labels: 32 random bytes that only their owner can read.

It belongs to the labels, not to a run: the same key gives a row the same randomized label in every
run. It is never sent, and is in no event, log or checkpoint; these have its fingerprint at most.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from celu.errors import ConfigError

LABEL_KEY = "label.key"  # beside a guest's store
_BYTES, _MIN_BYTES, _MAX_BYTES = 32, 16, 64  # a keyed BLAKE2b takes at most 64
_MAX_FILE_BYTES = 1024


@dataclass(frozen=True)
class LabelKey:
    """A secret key, and its file if it has one."""

    secret: bytes = field(repr=False)
    path: Path | None = None

    @property
    def fingerprint(self) -> str:
        """Identifies the key without revealing it."""
        return hashlib.blake2b(
            key=self.secret, digest_size=16, person=b"celu.key.print"
        ).hexdigest()

    @classmethod
    def read(cls, source: bytes | Path | str | None) -> LabelKey:
        """The key of a file, which is created if it does not exist, or the bytes themselves.

        Raises ConfigError for a missing, short or damaged key, and for a file that others can read.
        """
        if source is None:
            raise ConfigError(
                "label_key: expected a key for privacy.label_epsilon, got none; pass the path of a "
                "file, which is created if it does not exist, or at least "
                f"{_MIN_BYTES} random bytes"
            )
        if isinstance(source, bytes):
            return cls(_checked(source, "label_key"))
        path = Path(source)
        try:
            if not path.exists():
                _create(path)
            _check_mode(path)
            with path.open("rb") as file:
                content = file.read(_MAX_FILE_BYTES)
        except OSError as error:
            raise ConfigError(f"{path}: expected a key, got: {error.strerror or error}") from error
        try:
            secret = bytes.fromhex(content.decode("ascii"))
        except ValueError as error:
            raise ConfigError(
                f"{path}: expected a key as hexadecimal digits, got something else; restore the "
                "file. A new key would randomize all labels again, and spend the budget again"
            ) from error
        return cls(_checked(secret, str(path)), path)


def _checked(secret: bytes, where: str) -> bytes:
    if not _MIN_BYTES <= len(secret) <= _MAX_BYTES:
        raise ConfigError(
            f"{where}: expected a key of {_MIN_BYTES} to {_MAX_BYTES} bytes, got {len(secret)}"
        )
    return secret


def _create(path: Path) -> None:
    """Write a new key so that a crash leaves a whole file or none."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(partial, path)  # unlike a rename, it does not replace a key of another process
    except FileExistsError:
        pass
    finally:
        partial.unlink()


def _check_mode(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{path}: expected a file that only its owner can read, got mode {mode:04o}; "
            f"chmod 600 {path}"
        )
