"""One party's half of the set intersection with one peer.

    we     shuffle our ids, hash each to the group, multiply it by our key   BLINDED  ->
    peer   multiplies it by its key as well, returns it in the same order    <- REBLINDED
    and vice versa, at the same time

At the end each side has its own elements and the peer's, blinded with both keys; equal elements are
common rows. Each side learns which of its rows the peer has, and how many rows the peer has in
total; the peer's other rows are indistinguishable from random elements.

The protocol is secure against honest-but-curious parties. A peer's messages are validated as far as
possible, but a peer can claim ids that it does not have, as in any such protocol.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt
import torch

from celu.data.tags import TAG_BYTES, Tags, ascending
from celu.errors import ProtocolError
from celu.psi.state import VALUE_BYTES, ChunkFile, ExchangeState
from celu.psi.workers import Workers, result_of
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, expect, require_rows

RowNumbers = npt.NDArray[np.int64]

# Chunks that may be queued at the workers between two messages (LAG) and on the wire (AHEAD). They
# determine the order of messages, so they are the same at all parties. They are small enough that
# neither side's queue of unread messages is full while the peer waits to send.
LAG = 8
AHEAD = 2


class Exchange:
    """The exchange with one peer, in `num_steps` steps that both sides run in the same order.

    Each step advances up to five chunks by one stage, so that messages are in flight and workers
    multiply while this party handles other chunks.
    """

    def __init__(
        self, link: Link, tags: Tags, state: ExchangeState, workers: Workers, peer_total: int
    ) -> None:
        saved = state.saved
        assert saved is not None
        self.link = link
        self.state = state
        self.peer_total = peer_total  # its rows, in all shards
        self.session = bytes.fromhex(saved.session)
        self._key = bytes.fromhex(saved.key)
        seed = bytes.fromhex(saved.seed)
        self._num_tags = len(tags)
        self._tags = np.concatenate([tags, dummies(state.own.num_rows - len(tags), seed)])
        self._order = shuffled(state.own.num_rows, seed)
        self._workers = workers
        self._own_chunks = range(state.own.num_stored, state.own.num_chunks)
        self._peers_chunks = range(state.first_to_answer, state.peers.num_chunks)
        self._first = min(state.own.num_stored, state.first_to_answer)
        last = max(state.own.num_chunks, state.peers.num_chunks)
        self.num_steps = last - self._first + 2 * (LAG + AHEAD)
        self._blinding: dict[int, Future[bytes]] = {}
        self._answering: dict[int, Future[bytes]] = {}
        self._sent: dict[int, bytes] = {}  # chunks that are not answered yet

    @property
    def done(self) -> int:
        """The number of finished elements, ours and the peer's."""
        return self.state.own.num_rows_stored + self.state.peers.num_rows_stored

    @property
    def total(self) -> int:
        """The number of elements, ours and the peer's."""
        return self.state.own.num_rows + self.state.peers.num_rows

    async def step(self, number: int) -> None:
        """Advance every chunk that is due; raises ProtocolError for what the peer may not send."""
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
            elements = result_of(self._blinding.pop(chunk))
            width = self._workers.group.element_bytes
            self._sent[chunk] = _truncate(elements, width)
            await self.link.send(_message(Kind.BLINDED, chunk, elements, width))

    async def _receive_blinded(self, chunk: int) -> None:
        if chunk in self._peers_chunks:
            elements = await self._receive(Kind.BLINDED, chunk, self.state.peers)
            self._answering[chunk] = self._workers.reblind(self._key, elements)

    async def _send_answer(self, chunk: int) -> None:
        if chunk in self._peers_chunks:
            try:
                elements = result_of(self._answering.pop(chunk))
                values = _truncate(elements, self._workers.group.element_bytes)
                # Before sending, so that the peer never has more than we stored.
                self.state.record_answer(chunk, values)
            except ProtocolError as error:
                raise self._violation(f"BLINDED of round {chunk}: {error}") from None
            await self.link.send(_message(Kind.REBLINDED, chunk, values, VALUE_BYTES))

    async def _receive_answer(self, chunk: int) -> None:
        if chunk in self._own_chunks:
            values = await self._receive(Kind.REBLINDED, chunk, self.state.own)
            if (_matrix(values) == _matrix(self._sent.pop(chunk))).all(1).any():
                raise self._violation(
                    f"REBLINDED of round {chunk}: an element was returned unchanged"
                )
            self.state.own.append(values)

    async def _receive(self, kind: Kind, chunk: int, chunks: ChunkFile) -> bytes:
        message = expect(await self.link.receive(), kind, chunk)
        data: bytes = require_rows(message, chunks.size(chunk)).numpy().tobytes()
        return data

    def common(self) -> RowNumbers:
        """The rows that the peer has too, ascending; raises ProtocolError for duplicates."""
        num_own = self.state.own.num_rows
        both = np.concatenate([self.state.own.values(), self.state.peers.values()])
        order = ascending(both)  # stable, so our element comes before an equal one of the peer
        heads = both[:, :8].copy().view(np.uint64).reshape(-1)[order]
        same_head = np.flatnonzero(heads[1:] == heads[:-1])  # compare all bytes of these only
        former, latter = order[same_head], order[same_head + 1]
        equal = (both[former] == both[latter]).all(1)
        former, latter = former[equal], latter[equal]
        if (former >= num_own).any():
            raise self._violation("BLINDED: expected every element once, got a duplicate")
        if (latter < num_own).any():
            raise self._violation("REBLINDED: expected every element once, got a duplicate")
        rows = np.sort(self._order[former])
        if len(rows) and rows[-1] >= self._num_tags:  # by chance with a probability of 2**-70
            raise self._violation("REBLINDED: a dummy is in common; the next start uses others")
        return rows

    def _violation(self, what: str) -> ProtocolError:
        return ProtocolError(f"from {self.link.peer}: {what}")


def specs(chunk_rows: int, element_bytes: int) -> dict[Kind, TensorSpec]:
    """The tensors that a peer may send during an exchange."""
    return {
        Kind.BLINDED: TensorSpec(chunk_rows, element_bytes, torch.uint8),
        Kind.REBLINDED: TensorSpec(chunk_rows, VALUE_BYTES, torch.uint8),
    }


def shuffled(num_rows: int, seed: bytes) -> RowNumbers:
    """Row numbers in an order that cannot be predicted without the seed.

    The peer learns the positions of the common rows. With an ordinary random generator it could
    recover the seed, and since rows are sorted by tag, estimate the tags of the other rows.
    """
    keys = np.frombuffer(hashlib.shake_256(seed).digest(8 * num_rows), np.uint64)
    return np.argsort(keys, kind="stable")


def dummies(count: int, seed: bytes) -> Tags:
    """Random tags that pad a shard; nobody else has them, and blinded they look like any other."""
    data = hashlib.shake_256(b"dummies" + seed).digest(TAG_BYTES * count)
    return np.frombuffer(data, np.uint8).reshape(-1, TAG_BYTES)


def _message(kind: Kind, chunk: int, data: bytes, width: int) -> Message:
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, width)
    return Message(kind, chunk, tensor=tensor)


def _truncate(elements: bytes, width: int) -> bytes:
    return np.frombuffer(elements, np.uint8).reshape(-1, width)[:, :VALUE_BYTES].tobytes()


def _matrix(values: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(values, np.uint8).reshape(-1, VALUE_BYTES)
