"""The progress of an exchange with one peer on disk, so that it can resume after a crash.

    state    the key, the shuffle's seed, the session, and a digest of the inputs they belong to
    own      our elements, blinded with both keys, as the peer returned them, in the order sent
    peers    the peer's elements, blinded with both keys, as we returned them, in arrival order
    answered how many ids of the peer were answered under earlier keys

`own` and `peers` are sequences of chunks, each with a digest bound to the session; everything from
the first chunk on that is torn, altered or of another session is ignored. Only the owner can read
the folder, and `discard` removes the secrets: with the key, anyone could test guessed ids against
the elements. An answer is on disk before it is sent, and stays there as long as its key: otherwise
a peer that restarts could have other ids answered under the same key.
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

from celu.data.folder import sync
from celu.errors import CeluError, ProtocolError
from celu.psi.answered import Answered, read_answered, write_answered

VALUE_BYTES = 16  # stored of each element: enough to distinguish elements
SECRET_BYTES = 32
_DIGEST_BYTES = 16
_STATE, _OWN, _PEERS, _ANSWERED = "state", "own", "peers", "answered"


@dataclass(frozen=True)
class SessionSecrets:
    """The secrets of a session and the inputs they belong to; digests and keys in hexadecimal."""

    session: str
    key: str
    seed: str
    made_for: str  # digest of our rows and the terms
    peer_rows: int


class ExchangeState:
    """The folder of one exchange. Nothing is written before `start`."""

    def __init__(self, folder: Path, made_for: str, own_rows: int, chunk_rows: int) -> None:
        self._folder = folder
        self._made_for = made_for
        self._own_rows = own_rows
        self._chunk_rows = chunk_rows
        self._answered_before = read_answered(folder / _ANSWERED)
        self.saved = self._load()
        if self.saved is not None:
            self._open(self.saved)

    @property
    def answered(self) -> Answered:
        """The ids of the peer that were answered under this key and all earlier ones."""
        # Of any session: the rows or terms may have changed since.
        return self._answered_before.plus(num_rows_in(self._folder / _PEERS, self._chunk_rows))

    def start(self, session: str, key: bytes, peer_rows: int) -> SessionSecrets:
        """Discard earlier progress, and store the secrets of a new session.

        Raises ProtocolError if too many ids of the peer were answered already.
        """
        self.discard()
        self._answered_before.check_allows(peer_rows)
        seed = secrets.token_hex(SECRET_BYTES)
        self.saved = SessionSecrets(session, key.hex(), seed, self._made_for, peer_rows)
        record = asdict(self.saved)
        text = json.dumps({**record, "check": _check(record)})
        with _reporting_write_errors(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)  # it may have existed with other permissions
            _append(self._folder / _STATE, text.encode())
        self._open(self.saved)
        return self.saved

    def resume(self, num_answered: int, num_received: int) -> None:
        """Continue after the chunks that the peer has answered, and those it has answers to.

        If the peer has fewer answers than we stored, it sends these chunks again.
        """
        self.own.truncate(min(self.own.num_stored, num_answered))
        self.first_to_answer = min(self.peers.num_stored, num_received)

    def record_answer(self, chunk: int, values: bytes) -> None:
        """Store an answer before it is sent; raises ProtocolError if it differs from a stored one.

        A key, a position and an answer belong together: the peer learns nothing by a restart.
        """
        if chunk == self.peers.num_stored:
            self.peers.append(values)
        elif self.peers.read(chunk) != values:
            raise ProtocolError(
                "expected the elements that were answered before the restart, got others; the next "
                "start uses a fresh key"
            )

    def discard(self) -> None:
        """Remove the secrets and the stored elements; the number of answered ids stays."""
        answered = self.answered
        (self._folder / _STATE).unlink(missing_ok=True)  # the key first
        if answered.count > self._answered_before.count:  # if we are killed here, some count twice
            with _reporting_write_errors(self._folder):
                write_answered(self._folder / _ANSWERED, answered)
            self._answered_before = answered
        self._remove(_OWN, _PEERS)

    def finish(self) -> None:
        """Remove everything, at the end of an alignment."""
        self._remove(_STATE, _OWN, _PEERS, _ANSWERED)
        self._answered_before = Answered()

    def _remove(self, *names: str) -> None:
        for name in names:
            (self._folder / name).unlink(missing_ok=True)
        self.saved = None
        with suppress(OSError):  # it does not exist, or contains other files
            self._folder.rmdir()

    def _open(self, saved: SessionSecrets) -> None:
        key = bytes.fromhex(saved.session)
        self.own = ChunkFile(self._folder / _OWN, key, self._own_rows, self._chunk_rows)
        self.peers = ChunkFile(
            self._folder / _PEERS, key, saved.peer_rows, self._chunk_rows, durable=True
        )
        self.first_to_answer = self.peers.num_stored

    def _load(self) -> SessionSecrets | None:
        try:
            record = json.loads((self._folder / _STATE).read_bytes())
            if record.pop("check") != _check(record):
                return None
            saved = SessionSecrets(**record)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return saved if saved.made_for == self._made_for else None


class ChunkFile:
    """A file of values in chunks, of which the first `num_stored` are there and verified.

    If it is `durable`, an appended chunk survives a power cut.
    """

    def __init__(
        self, path: Path, key: bytes, num_rows: int, chunk_rows: int, *, durable: bool = False
    ) -> None:
        self._path = path
        self._durable = durable
        self._key = key
        self.num_rows = num_rows
        self.chunk_rows = chunk_rows
        self.num_chunks = -(-num_rows // chunk_rows)
        self.num_stored = sum(1 for _ in self._read())
        self.truncate(self.num_stored)

    @property
    def num_rows_stored(self) -> int:
        """The number of values in the stored chunks."""
        return min(self.num_stored * self.chunk_rows, self.num_rows)

    def size(self, chunk: int) -> int:
        """The number of values in a chunk: only the last one may be smaller."""
        return min(self.chunk_rows, self.num_rows - chunk * self.chunk_rows)

    def append(self, values: bytes) -> None:
        """Write the next chunk."""
        with _reporting_write_errors(self._path):
            _append(self._path, values + self._digest(self.num_stored, values))
            if self._durable:
                sync(self._path)
                if self.num_stored == 0:
                    sync(self._path.parent)
        self.num_stored += 1

    def read(self, chunk: int) -> bytes:
        """The values of a stored chunk."""
        with self._path.open("rb") as file:
            file.seek(chunk * (self.chunk_rows * VALUE_BYTES + _DIGEST_BYTES))
            return file.read(self.size(chunk) * VALUE_BYTES)

    def truncate(self, num_chunks: int) -> None:
        """Cut the file after `num_chunks` chunks."""
        self.num_stored = num_chunks
        if self._path.exists():
            rows = min(num_chunks * self.chunk_rows, self.num_rows)
            os.truncate(self._path, rows * VALUE_BYTES + num_chunks * _DIGEST_BYTES)

    def values(self) -> npt.NDArray[np.uint8]:
        """All values, [rows, VALUE_BYTES]."""
        return np.frombuffer(b"".join(self._read()), np.uint8).reshape(-1, VALUE_BYTES)

    def _read(self) -> Iterator[bytes]:
        """The chunks up to the first invalid one."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            for chunk in range(self.num_chunks):
                values = file.read(self.size(chunk) * VALUE_BYTES)
                if file.read(_DIGEST_BYTES) != self._digest(chunk, values):
                    return
                yield values

    def _digest(self, chunk: int, values: bytes) -> bytes:
        digest = hashlib.blake2b(values, digest_size=_DIGEST_BYTES, key=self._key)
        digest.update(chunk.to_bytes(8))
        return digest.digest()


def num_rows_in(path: Path, chunk_rows: int) -> int:
    """The number of values in a file of chunks, of any session."""
    num_bytes = path.stat().st_size if path.exists() else 0
    num_chunks = -(-num_bytes // (chunk_rows * VALUE_BYTES + _DIGEST_BYTES))
    return max(0, num_bytes - num_chunks * _DIGEST_BYTES) // VALUE_BYTES


def _check(record: dict[str, object]) -> str:
    text = json.dumps(record, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)


@contextmanager
def _reporting_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a CeluError with the path and the next step."""
    try:
        yield
    except OSError as error:
        raise CeluError(
            f"{path}: cannot be written ({error.strerror}); free some space, or choose another "
            "folder, and start again to resume"
        ) from error
