"""What an exchange with one peer leaves on disk, so that it can go on after a crash.

    state    the key, the seed of the shuffle, the session, and what they were made for
    own      our elements under both keys, as the peer returned them, in the order we sent them
    peers    the peer's elements under both keys, as we returned them, in the order they came

The last two are lists of whole chunks, each with a digest bound to the session; whatever follows
the first chunk that is torn, altered or of another session does not count. The folder and its
files are for the owner alone, and `discard` removes them: with the key, the ids of both sides could
be tried out against what was exchanged.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from celu.errors import CeluError

VALUE_BYTES = 16  # kept of each element: enough that two different ones never look the same
SECRET_BYTES = 32
_DIGEST_BYTES = 16
_STATE, _OWN, _PEERS = "state", "own", "peers"


@dataclass(frozen=True)
class Saved:
    """A session's secrets, and what binds them: all in hexadecimal but the count."""

    session: str
    key: str
    seed: str
    made_for: str  # digest of our rows and of the terms
    peer_rows: int


class State:
    """The folder of one exchange. Nothing is written before `begin`."""

    def __init__(self, folder: Path, made_for: str, own_rows: int, chunk_rows: int) -> None:
        self._folder = folder
        self._made_for = made_for
        self._own_rows = own_rows
        self._chunk_rows = chunk_rows
        self.saved = self._load()
        if self.saved is not None:
            self._open(self.saved)

    def begin(self, session: str, key: bytes, peer_rows: int) -> Saved:
        """Forget what was kept, and keep a new session's secrets."""
        self.discard()
        seed = secrets.token_hex(SECRET_BYTES)
        self.saved = Saved(session, key.hex(), seed, self._made_for, peer_rows)
        record = asdict(self.saved)
        text = json.dumps({**record, "check": _check(record)})
        with _writing(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)  # also one that was there before
            _append(self._folder / _STATE, text.encode())
        self._open(self.saved)
        return self.saved

    def discard(self) -> None:
        """Remove the secrets and the values."""
        for name in (_STATE, _OWN, _PEERS):  # the key first
            (self._folder / name).unlink(missing_ok=True)
        self.saved = None
        with suppress(OSError):  # never made, or not ours alone
            self._folder.rmdir()

    def _open(self, saved: Saved) -> None:
        key = bytes.fromhex(saved.session)
        self.own = Chunks(self._folder / _OWN, key, self._own_rows, self._chunk_rows)
        self.peers = Chunks(self._folder / _PEERS, key, saved.peer_rows, self._chunk_rows)

    def _load(self) -> Saved | None:
        try:
            record = json.loads((self._folder / _STATE).read_bytes())
            if record.pop("check") != _check(record):
                return None
            saved = Saved(**record)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return saved if saved.made_for == self._made_for else None


class Chunks:
    """A file of values in whole chunks; `count` of them are there and sound."""

    def __init__(self, path: Path, key: bytes, num_rows: int, chunk_rows: int) -> None:
        self._path = path
        self._key = key
        self.num_rows = num_rows
        self.chunk_rows = chunk_rows
        self.total = -(-num_rows // chunk_rows)
        self.count = sum(1 for _ in self._read())
        self.keep(self.count)

    @property
    def rows_there(self) -> int:
        """How many values the chunks hold."""
        return min(self.count * self.chunk_rows, self.num_rows)

    def size(self, chunk: int) -> int:
        """How many values a chunk holds: all but the last are full."""
        return min(self.chunk_rows, self.num_rows - chunk * self.chunk_rows)

    def append(self, values: bytes) -> None:
        """Add the next chunk."""
        with _writing(self._path):
            _append(self._path, values + self._digest(self.count, values))
        self.count += 1

    def keep(self, count: int) -> None:
        """Cut the file after this many chunks."""
        self.count = count
        if self._path.exists():
            rows = min(count * self.chunk_rows, self.num_rows)
            os.truncate(self._path, rows * VALUE_BYTES + count * _DIGEST_BYTES)

    def values(self) -> npt.NDArray[np.uint8]:
        """All values, [rows, VALUE_BYTES]."""
        return np.frombuffer(b"".join(self._read()), np.uint8).reshape(-1, VALUE_BYTES)

    def _read(self) -> Iterator[bytes]:
        """The chunks up to the first that is not sound."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            for chunk in range(self.total):
                values = file.read(self.size(chunk) * VALUE_BYTES)
                if file.read(_DIGEST_BYTES) != self._digest(chunk, values):
                    return
                yield values

    def _digest(self, chunk: int, values: bytes) -> bytes:
        digest = hashlib.blake2b(values, digest_size=_DIGEST_BYTES, key=self._key)
        digest.update(chunk.to_bytes(8))
        return digest.digest()


def _check(record: dict[str, object]) -> str:
    text = json.dumps(record, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say where and why something could not be written."""
    try:
        yield
    except OSError as error:
        raise CeluError(
            f"{path}: cannot be written ({error.strerror}); free some space, or choose another "
            "folder, and start again to go on from here"
        ) from error
