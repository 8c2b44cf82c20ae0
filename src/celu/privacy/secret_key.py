"""A party's secret keys: 32 random bytes each, in a file that only their owner can read.

The key of labels belongs to the labels, not to a run: it gives a row the same randomized label in
every run. The key of noise repeats a run's noise when the run resumes. Keys are never sent, and are
in no event, log or checkpoint; these have a fingerprint at most.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from celu.errors import CheckpointError, ConfigError

_BYTES, _MIN_BYTES, _MAX_BYTES = 32, 16, 64  # a keyed BLAKE2b takes at most 64
_MAX_FILE_BYTES = 1024


@dataclass(frozen=True)
class KeyUse:
    """What a key is for: the argument that has it, what needs it, its file beside a store."""

    argument: str
    needed_for: str
    file: str
    if_replaced: str  # what another key would do


LABELS = KeyUse(
    "label_key",
    "privacy.label_epsilon",
    "label.key",
    "randomize all labels again, and spend the budget again",
)
NOISE = KeyUse(
    "noise_key",
    "privacy.z_noise or dz_noise",
    "noise.key",
    "draw other noise, so that a run could not resume",
)


@dataclass(frozen=True)
class SecretKey:
    """A secret key, and its file if it has one."""

    secret: bytes = field(repr=False)
    path: Path | None = None

    @property
    def fingerprint(self) -> str:
        """Identifies the key without revealing it."""
        return hashlib.blake2b(
            key=self.secret, digest_size=16, person=b"celu.key.print"
        ).hexdigest()

    def check_same(self, fingerprint: str | None, use: KeyUse) -> None:
        """Raise CheckpointError unless this is the key of a run that resumes."""
        if fingerprint != self.fingerprint:
            raise CheckpointError(
                f"{self.path or use.argument}: expected the key that the run started with, got "
                f"another, which would {use.if_replaced}; restore it, or start a new run with "
                "another --out at all parties"
            )

    @classmethod
    def read(
        cls, source: bytes | Path | str | None, use: KeyUse, *, create: bool = True
    ) -> SecretKey:
        """The key of a file, which is created if it does not exist, or the bytes themselves.

        With `create=False` a missing file is refused. Raises ConfigError for a missing, short or
        damaged key, and for a file that others can read.
        """
        if source is None:
            raise ConfigError(
                f"{use.argument}: expected a key for {use.needed_for}, got none; pass the path of "
                f"a file, which is created if it does not exist, or at least {_MIN_BYTES} random "
                "bytes"
            )
        if isinstance(source, bytes):
            return cls(_checked(source, use.argument))
        path = Path(source)
        try:
            if create and not path.exists():
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
                f"file. A new key would {use.if_replaced}"
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
