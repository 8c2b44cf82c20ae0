"""One party's half of an exchange with one peer: who of us holds the same ids?

    we     shuffle our ids, hash each to the group, raise it to our key      BLINDED  ->
    peer   raises it to its key as well, and returns it at the same place    <- REBLINDED
    and the other way round, at the same time

At the end each side has its own elements under both keys, by place, and the peer's. What is equal
is common. Each learns which of its rows the other has, and how many the other has in all; of the
other's remaining rows it has seen nothing but elements that look random.

Both sides are trusted to follow the protocol, not to be correct: what arrives is checked for what
can be checked. A peer can still claim ids that it does not hold, as with any such protocol.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt
import torch

from celu.data.tags import Tags, ascending
from celu.errors import ProtocolError
from celu.psi.state import VALUE_BYTES, Chunks, State
from celu.psi.workers import Workers
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, expect, require_rows

Rows = npt.NDArray[np.int64]

# Chunks that may be with the workers on the way from one message to the next, and on the wire.
# They set the order of messages, so they are the same at all parties. Few enough that neither
# side's queue of unread messages is ever full while the peer waits to send.
LAG = 8
AHEAD = 2


class Exchange:
    """Does the work of one pair in `num_steps` steps; both sides do as many, in the same order.

    In one step up to five chunks move on, each to its next stage, so that messages travel and
    workers multiply while this party handles others.
    """

    def __init__(self, link: Link, tags: Tags, state: State, workers: Workers) -> None:
        saved = state.saved
        assert saved is not None
        self.link = link
        self.state = state
        self.session = bytes.fromhex(saved.session)
        self._key = bytes.fromhex(saved.key)
        self._tags = tags
        self._order = shuffled(len(tags), bytes.fromhex(saved.seed))
        self._workers = workers
        self._own_chunks = range(state.own.count, state.own.total)
        self._peers_chunks = range(state.peers.count, state.peers.total)
        self._first = min(state.own.count, state.peers.count)
        last = max(state.own.total, state.peers.total)
        self.num_steps = last - self._first + 2 * (LAG + AHEAD)
        self._blinding: dict[int, Future[bytes]] = {}
        self._answering: dict[int, Future[bytes]] = {}
        self._sent: dict[int, bytes] = {}  # what we await an answer to

    @property
    def done(self) -> int:
        """Elements that need no more work, ours and the peer's."""
        return self.state.own.rows_there + self.state.peers.rows_there

    @property
    def total(self) -> int:
        """Elements in all, ours and the peer's."""
        return self.state.own.num_rows + self.state.peers.num_rows

    async def step(self, number: int) -> None:
        """Move on every chunk whose turn it is; raises ProtocolError for what the peer may not."""
        chunk = self._first + number
        self._blind(chunk)
        chunk -= LAG
        await self._send_blinded(chunk)
        chunk -= AHEAD
        await self._receive_blinded(chunk)
        chunk -= LAG
        await self._send_answer(chunk)
        chunk -= AHEAD
        await self._receive_answer(chunk)

    def _blind(self, chunk: int) -> None:
        if chunk in self._own_chunks:
            start = chunk * self.state.own.chunk_rows
            rows = self._order[start : start + self.state.own.size(chunk)]
            ids = self._tags[rows].tobytes()
            self._blinding[chunk] = self._workers.blind(self._key, self.session, ids)

    async def _send_blinded(self, chunk: int) -> None:
        if chunk in self._own_chunks:
            elements = self._blinding.pop(chunk).result()
            width = self._workers.group.element_bytes
            self._sent[chunk] = _shortened(elements, width)
            await self.link.send(_message(Kind.BLINDED, chunk, elements, width))

    async def _receive_blinded(self, chunk: int) -> None:
        if chunk in self._peers_chunks:
            elements = await self._receive(Kind.BLINDED, chunk, self.state.peers)
            self._answering[chunk] = self._workers.reblind(self._key, elements)

    async def _send_answer(self, chunk: int) -> None:
        if chunk in self._peers_chunks:
            try:
                elements = self._answering.pop(chunk).result()
            except ProtocolError as error:
                raise self._refusal(f"BLINDED of round {chunk}: {error}") from None
            values = _shortened(elements, self._workers.group.element_bytes)
            self.state.peers.append(values)  # before it is sent: then the peer is never ahead
            await self.link.send(_message(Kind.REBLINDED, chunk, values, VALUE_BYTES))

    async def _receive_answer(self, chunk: int) -> None:
        if chunk in self._own_chunks:
            values = await self._receive(Kind.REBLINDED, chunk, self.state.own)
            if (_matrix(values) == _matrix(self._sent.pop(chunk))).all(1).any():
                raise self._refusal(f"REBLINDED of round {chunk}: an element came back as it went")
            self.state.own.append(values)

    async def _receive(self, kind: Kind, chunk: int, chunks: Chunks) -> bytes:
        message = expect(await self.link.receive(), kind, chunk)
        data: bytes = require_rows(message, chunks.size(chunk)).numpy().tobytes()
        return data

    def common(self) -> Rows:
        """The rows that the peer has too, ascending; ProtocolError for an element seen twice."""
        num_own = self.state.own.num_rows
        both = np.concatenate([self.state.own.values(), self.state.peers.values()])
        order = ascending(both)  # keeps equal ones in their order, so ours come first
        heads = both[:, :8].copy().view(np.uint64).reshape(-1)[order]
        alike = np.flatnonzero(heads[1:] == heads[:-1])  # nearly always the whole is
        former, latter = order[alike], order[alike + 1]
        equal = (both[former] == both[latter]).all(1)
        former, latter = former[equal], latter[equal]
        if (former >= num_own).any():
            raise self._refusal("BLINDED: expected every element once, got one twice")
        if (latter < num_own).any():
            raise self._refusal("REBLINDED: expected every element once, got one twice")
        return np.sort(self._order[former])

    def _refusal(self, what: str) -> ProtocolError:
        return ProtocolError(f"from {self.link.peer}: {what}")


def specs(chunk_rows: int, element_bytes: int) -> dict[Kind, TensorSpec]:
    """What a peer may send during an exchange."""
    return {
        Kind.BLINDED: TensorSpec(chunk_rows, element_bytes, torch.uint8),
        Kind.REBLINDED: TensorSpec(chunk_rows, VALUE_BYTES, torch.uint8),
    }


def shuffled(num_rows: int, seed: bytes) -> Rows:
    """The numbers of rows in an order that nobody can tell without the seed.

    The peer learns the places of the common rows. From an ordinary generator's numbers it could
    work out the seed, and so, rows being sorted, about where the others' tags lie.
    """
    keys = np.frombuffer(hashlib.shake_256(seed).digest(8 * num_rows), np.uint64)
    return np.argsort(keys, kind="stable")


def _message(kind: Kind, chunk: int, data: bytes, width: int) -> Message:
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, width)
    return Message(kind, chunk, tensor=tensor)


def _shortened(elements: bytes, width: int) -> bytes:
    return np.frombuffer(elements, np.uint8).reshape(-1, width)[:, :VALUE_BYTES].tobytes()


def _matrix(values: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(values, np.uint8).reshape(-1, VALUE_BYTES)
