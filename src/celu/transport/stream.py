"""A `Link` over any carrier that moves byte strings in order, one stream each way.

The carrier pulls outgoing pieces from `outgoing()` on a thread of its own and hands what it
receives to `pump()` on another; the party's compute thread only touches two bounded queues. Where
a gateway is in between, pieces are sealed on their way out and opened on their way in (`sealed`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace

from celu.errors import CeluError, PeerLost, ProtocolError
from celu.transport.emulation import Line
from celu.transport.message import Kind, Message, TensorSpec, TrafficBothWays, failure_of
from celu.transport.sealed import Seal
from celu.transport.wire import (
    HEADER,
    PIECE_BYTES,
    check_finite,
    check_sendable,
    decode,
    decode_header,
    encode,
    num_bytes,
)

# Messages that may wait on either side of the compute thread: bounds memory, and through the
# carrier's flow control slows a peer that sends faster than this party computes.
QUEUED_MESSAGES = 8
# How long a closing link waits for what was sent to arrive and for the peer to close as well.
CLOSE_S = 5.0


class StreamLink:
    """One end of a stream; see `Link`."""

    def __init__(self, peer: str, *, deadline_s: float, line: Line | None = None) -> None:
        self.peer = peer
        self.traffic = TrafficBothWays()
        self._deadline_s = deadline_s
        self._line = line
        self._specs: Mapping[Kind, TensorSpec] = {}
        self._outgoing: queue.Queue[tuple[Message, float] | None] = queue.Queue(QUEUED_MESSAGES)
        self._incoming: queue.Queue[Message | CeluError] = queue.Queue(QUEUED_MESSAGES)
        self._end: CeluError | None = None  # why nothing more will be received
        self._ended = threading.Event()  # nothing more will arrive
        self._sent_all = threading.Event()  # ... or be sent
        self._closing = threading.Event()
        # For the carrier to set, before it begins.
        self.explain: Callable[[Exception], CeluError] | None = None  # its own errors
        self.piece_bytes = PIECE_BYTES
        self.seal: Seal | None = None

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        """See `Link`."""
        self._specs = specs

    async def send(self, message: Message) -> None:
        """See `Link`. A tensor on an accelerator is brought to main memory here."""
        if message.tensor is not None:
            message = replace(message, tensor=message.tensor.detach().to("cpu"))
        if message.total is not None:
            check_finite(message.total.cpu(), message.kind.name, message.round)
        check_sendable(message)
        size = num_bytes(message)
        try:
            self._outgoing.put((message, time.monotonic()), timeout=self._deadline_s)
        except queue.Full:
            raise PeerLost(
                f"{self.peer} took nothing for {self._deadline_s:g} s (deadline_s); "
                "is it still running?"
            ) from None
        self.traffic.sent.count(message.kind, size)

    async def receive(self) -> Message:
        """See `Link`."""
        if self._end is not None:
            raise self._end
        try:
            message = self._incoming.get(timeout=self._deadline_s)
        except queue.Empty:
            raise PeerLost(
                f"{self.peer} sent nothing for {self._deadline_s:g} s (deadline_s); "
                "is it still running, and is the link up?"
            ) from None
        if isinstance(message, CeluError):
            self._ended.set()
            self._end = message
            raise message
        if message.tensor is not None:
            check_finite(message.tensor, f"{message.kind.name} from {self.peer}", message.round)
        return message

    def close(self) -> None:
        """See `Link`."""
        if self._closing.is_set():
            return
        self._closing.set()
        try:
            self._outgoing.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._sent_all.wait(CLOSE_S)
        self._ended.wait(CLOSE_S)

    def outgoing(self) -> Generator[bytes, None, None]:
        """What to send, for the carrier's sending thread; ends when the link is closed."""
        sequence, seal = 0, self.seal
        try:
            if seal is not None and not (yield from seal.flights()):
                return
            while (item := self._outgoing.get()) is not None:
                message, given_at = item
                for piece in encode(message, sequence, self.piece_bytes):
                    if self._line is not None:
                        self._line.carry(len(piece), given_at)
                    yield piece if seal is None else seal.seal(piece)
                sequence += 1
        finally:  # also where the carrier drops us half-way: closing must not wait for more
            self._sent_all.set()

    def pump(self, pieces: Iterator[bytes]) -> None:
        """Take in what arrives, for the carrier's receiving thread; returns when it ends."""
        sequence = 0
        try:
            if self.seal is not None:
                pieces = self.seal.opened(pieces)
            for data in pieces:
                began = time.monotonic()
                header = decode_header(data, sequence, self._specs)
                message = decode(header, pieces)
                self.traffic.received.count(
                    header.kind, HEADER.size + header.length, time.monotonic() - began
                )
                sequence += 1
                if message.kind is Kind.FAILURE:
                    self._put(failure_of(self.peer, message))
                    return
                self._put(message)
            self._put(PeerLost(f"{self.peer} closed the link"))
        except Exception as error:  # whatever the carrier raises, it ends here, with its name
            explained = self._explained(error)
            if self.seal is not None:
                self.seal.fail(explained)
            self._put(explained)
        finally:
            self._ended.set()

    def _explained(self, error: Exception) -> CeluError:
        if isinstance(error, ProtocolError):
            return type(error)(f"from {self.peer}: {error}")
        if isinstance(error, CeluError):
            return error
        explained = self.explain(error) if self.explain else None
        return explained or PeerLost(f"the link to {self.peer} broke: {error}")

    def _put(self, item: Message | CeluError) -> None:
        # A full queue stops this thread and so, by flow control, the peer. The compute thread
        # has a deadline of its own; while the link closes, nobody will empty the queue.
        while not self._closing.is_set():
            try:
                return self._incoming.put(item, timeout=0.2)
            except queue.Full:
                continue
        return None
