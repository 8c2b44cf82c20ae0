"""Trains of messages, timed at the end where they arrive.

What is timed must be the line and not the queues before it: a sender is done long before its bytes
are. So the receiver times a train, from the arrival of its first message to that of its last, and
tells. The sender tells how long it took until it knew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from celu.doctor.measurement import MAX_S, number, whole
from celu.errors import ProtocolError
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, expect, require_rows
from celu.transport.wire import HEADER, PIECE_BYTES

MAX_BYTES = PIECE_BYTES  # of one message
MAX_MESSAGES = 1024
MAX_REST_S = 60.0
SPECS = {Kind.PROBE: TensorSpec(MAX_BYTES, 1, torch.uint8)}
WAYS = ("to_host", "to_guest", "both")
# Both ways at once, this many messages may be sent beyond those received: as many as a link takes
# without waiting, for a party that waits to send does not see what arrives. (At 16, unsent at one
# end and unread at the other, both could wait to send and neither would read.)
AHEAD = 8
_MIN_MESSAGES = 16
_MIN_BYTES = 1024
_APART_S = 1e-7  # less than any two messages can be apart
_SLACK, _SLACK_S = 1.05, 0.05  # two clocks do not run alike


@dataclass(frozen=True)
class Watch:
    """What a party tells time by."""

    clock: Callable[[], float] = time.perf_counter
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Probe:
    """Messages to be sent one after the other: which way, how many, how large, after which rest."""

    number: int
    way: str
    messages: int
    to_host: int  # bytes of a message
    to_guest: int
    rest_s: float = 0.0

    @staticmethod
    def of(number: int, way: str, total: float, rest_s: float = 0.0) -> Probe:
        """One of about so many bytes, one way."""
        messages, size = _cut(total)
        return Probe(number, way, messages, size, size, rest_s)

    @staticmethod
    def both(number: int, to_host: float, to_guest: float) -> Probe:
        """One each way at the same time, of so many bytes, and of as many messages."""
        messages, _ = _cut(max(to_host, to_guest))
        sizes = (_size(total, messages) for total in (to_host, to_guest))
        return Probe(number, "both", messages, *sizes)

    @staticmethod
    def read(message: Message) -> Probe:
        """The train that a guest asks for; raises ProtocolError."""
        body: Mapping[str, Any] = message.body or {}
        if body.get("way") not in WAYS:
            raise ProtocolError("FINDINGS: way: expected a way to measure")
        return Probe(
            message.round,
            body["way"],
            whole(body, "messages", 2, MAX_MESSAGES),
            whole(body, "to_host", 1, MAX_BYTES),
            whole(body, "to_guest", 1, MAX_BYTES),
            number(body, "rest_s", 0.0, MAX_REST_S),
        )

    def order(self) -> Message:
        """What a guest asks for it with."""
        return Message(Kind.FINDINGS, self.number, body={"do": "train", **asdict(self)})

    @property
    def shortest_s(self) -> float:
        """No train arrives in less."""
        return (self.messages - 1) * _APART_S

    def mbps(self, way: str, span_s: float) -> float:
        """The rate at which it arrived; the first message only starts the watch."""
        size = HEADER.size + (self.to_host if way == "to_host" else self.to_guest)
        return (self.messages - 1) * size * 8 / 1e6 / span_s


def _cut(total: float) -> tuple[int, int]:
    messages = min(MAX_MESSAGES, max(_MIN_MESSAGES, -(-int(total) // MAX_BYTES)))
    return messages, _size(total, messages)


def _size(total: float, messages: int) -> int:
    return int(min(MAX_BYTES, max(_MIN_BYTES, total / messages)))


class End:
    """One party's end of the link, while trains run over it."""

    def __init__(self, link: Link, watch: Watch) -> None:
        self.link = link
        self.watch = watch
        # Nothing on the way can compress it.
        self._bytes = torch.frombuffer(bytearray(os.urandom(MAX_BYTES)), dtype=torch.uint8)

    async def send(self, train: Probe, size: int) -> tuple[float, float]:
        """Send a train, one way: seconds from its first arrival to its last, and until we knew."""
        if train.rest_s:
            self.watch.sleep(train.rest_s)
        started = self.watch.clock()
        for part in range(train.messages):
            await self._send_probe(train, part, size)
        span_s = await self._told(train, "span_s", train.shortest_s, started)
        elapsed_s = self.watch.clock() - started
        await self._tell(train, elapsed_s=elapsed_s)
        return span_s, elapsed_s

    async def receive(self, train: Probe, size: int) -> tuple[float, float]:
        """Receive a train, one way; as `send`."""
        await self._probe(train, 0, size)
        first = self.watch.clock()
        for part in range(1, train.messages):
            await self._probe(train, part, size)
        span_s = max(train.shortest_s, self.watch.clock() - first)
        await self._tell(train, span_s=span_s)
        return span_s, await self._told(train, "elapsed_s", max(0.0, span_s / _SLACK - _SLACK_S))

    async def exchange(self, train: Probe, sending: int, receiving: int) -> tuple[float, float]:
        """A train each way at once: seconds that the sent and the received one took to arrive.

        Neither gets far ahead of the other, as in training.
        """
        started = first = self.watch.clock()
        sent = 0
        for part in range(train.messages):
            while sent < min(train.messages, part + AHEAD):
                await self._send_probe(train, sent, sending)
                sent += 1
            await self._probe(train, part, receiving)
            if part == 0:
                first = self.watch.clock()
        span_s = max(train.shortest_s, self.watch.clock() - first)
        await self._tell(train, span_s=span_s)
        return await self._told(train, "span_s", train.shortest_s, started), span_s

    async def _send_probe(self, train: Probe, part: int, size: int) -> None:
        tensor = self._bytes[:size].reshape(-1, 1)
        await self.link.send(Message(Kind.PROBE, train.number, part, tensor))

    async def _probe(self, train: Probe, part: int, size: int) -> None:
        require_rows(expect(await self.link.receive(), Kind.PROBE, train.number, part), size)

    async def _tell(self, train: Probe, **seconds: float) -> None:
        await self.link.send(Message(Kind.FINDINGS, train.number, body=seconds))

    async def _told(
        self, train: Probe, key: str, least: float, started: float | None = None
    ) -> float:
        """The seconds that the peer tells; not more than have passed since we `started`."""
        message = expect(await self.link.receive(), Kind.FINDINGS, train.number)
        most = MAX_S
        if started is not None:
            most = (self.watch.clock() - started) * _SLACK + _SLACK_S
        return number(message.body or {}, key, least, most)
