"""Links between parties in one process: messages are passed by reference, nothing is copied.

With clocks and emulators they also account for the time on a real link (`virtual_clock`).
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from celu.errors import PeerLost, ProtocolError, ShapeError
from celu.transport.emulation import LinkEmulator
from celu.transport.message import TENSORS, Kind, Message, TensorSpec, TrafficBothWays, peer_failure
from celu.transport.virtual_clock import VirtualClock
from celu.transport.wire import check_sendable, num_bytes

_T = TypeVar("_T")
# Messages that may be in flight in one direction, like the buffers of a network. A host fills its
# pipeline before it receives anything: both directions together must hold as many messages as
# rounds may be in flight, or all parties would wait for each other.
CAPACITY = 32


class _Pipe:
    """One direction: a bounded queue, and whether its sender has closed it."""

    def __init__(self, emulator: LinkEmulator | None, capacity: int) -> None:
        self.capacity = capacity
        self.queue: deque[tuple[Message, float, float]] = deque()  # ..., arrival, transfer_s
        self.emulator = emulator
        self.closed = False


class MemoryLink:
    """One end of a pair; see `Link`. It suspends to wait: run it with `run_together`."""

    def __init__(
        self, peer: str, outgoing: _Pipe, incoming: _Pipe, clock: VirtualClock | None
    ) -> None:
        self.peer = peer
        self._clock = clock
        self.traffic = TrafficBothWays()
        self._outgoing = outgoing
        self._incoming = incoming
        self._specs: Mapping[Kind, TensorSpec] = {}

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        """See `Link`."""
        self._specs = specs

    async def send(self, message: Message) -> None:
        """See `Link`."""
        if message.tensor is not None and message.tensor.requires_grad:
            message = replace(message, tensor=message.tensor.detach())
        check_sendable(message)
        while len(self._outgoing.queue) >= self._outgoing.capacity:
            if self._incoming.closed:
                raise PeerLost(f"{self.peer} closed the link")
            await _suspend()
        size, arrival, transfer_s = num_bytes(message), 0.0, 0.0
        emulator = self._outgoing.emulator
        if self._clock is not None and emulator is not None:
            arrival = emulator.arrival(size, self._clock.now())
            transfer_s, left_at = emulator.transfer_s, emulator.free_at
            if message.tensor is not None:
                self.traffic.sent.spans.append((left_at - transfer_s, left_at))
        self._outgoing.queue.append((message, arrival, transfer_s))
        self.traffic.sent.count(message.kind, size)

    async def receive(self) -> Message:
        """See `Link`."""
        while not self._incoming.queue:
            if self._incoming.closed:
                raise PeerLost(f"{self.peer} closed the link")
            await _suspend()
        message, arrival, transfer_s = self._incoming.queue.popleft()
        if self._clock is not None:
            self._clock.wait_until(arrival)
            if message.tensor is not None:
                self.traffic.received.spans.append((arrival - transfer_s, arrival))
        self.traffic.received.count(message.kind, num_bytes(message), transfer_s)
        if message.kind is Kind.FAILURE:
            raise peer_failure(self.peer, message)
        if message.kind in TENSORS:
            if message.kind not in self._specs or message.tensor is None:
                raise ProtocolError(
                    f"from {self.peer}: {message.kind.name}: not expected at this point"
                )
            tensor = message.tensor
            try:
                self._specs[message.kind].validate(message.kind, tensor.dtype, tuple(tensor.shape))
            except ShapeError as error:
                raise ShapeError(f"from {self.peer}: {error}") from error
        return replace(message, sender=self.peer)

    def close(self) -> None:
        """See `Link`."""
        self._outgoing.closed = True


def memory_links(
    a: str,
    b: str,
    *,
    clocks: tuple[VirtualClock, VirtualClock] | None = None,
    emulators: tuple[LinkEmulator, LinkEmulator] | None = None,
    capacity: int = CAPACITY,
) -> tuple[MemoryLink, MemoryLink]:
    """A's link to B and B's link to A; `emulators` pace what A sends and what B sends."""
    to_b, to_a = (_Pipe(emulator, capacity) for emulator in emulators or (None, None))
    clock_a, clock_b = clocks or (None, None)
    return MemoryLink(b, to_b, to_a, clock_a), MemoryLink(a, to_a, to_b, clock_b)


def run_together(
    programs: dict[str, Coroutine[Any, Any, _T]],
    links: Sequence[MemoryLink],
    clocks: Mapping[str, VirtualClock] | None = None,
) -> dict[str, _T]:
    """Run the parties' programs in turns, in this thread, and return their results by name.

    Raises the error of the first party that fails, ProtocolError if all wait for each other.
    `clocks` account for the time that each program computes.
    """
    results: dict[str, _T] = {}
    try:
        while len(results) < len(programs):
            before = _progress(links) + len(results)
            for name, program in programs.items():
                if name not in results:
                    with clocks[name].running() if clocks else nullcontext():
                        try:
                            program.send(None)
                        except StopIteration as done:
                            results[name] = done.value
            if _progress(links) + len(results) == before:
                waiting = ", ".join(sorted(programs.keys() - results.keys()))
                raise ProtocolError(f"deadlock: these parties wait for each other: {waiting}")
    finally:
        for program in programs.values():
            program.close()
    return results


def _progress(links: Sequence[MemoryLink]) -> int:
    return sum(link.traffic.sent.messages + link.traffic.received.messages for link in links)


@types.coroutine
def _suspend() -> Generator[None, None, None]:
    yield
