"""Probes: series of messages that are timed where they arrive.

A sender returns long before its bytes have arrived, so sending times would measure queues and not
the link. Instead the receiver times a probe, from the arrival of its first message to that of its
last, and reports the time. The sender reports the time until it received that report.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from celu.doctor.measurement import MAX_S, integer, number
from celu.errors import ProtocolError
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, expect, require_rows
from celu.transport.wire import HEADER, PIECE_BYTES

MAX_BYTES = PIECE_BYTES  # of one message
MAX_MESSAGES = 1024
MAX_PAUSE_S = 60.0
SPECS = {Kind.PROBE: TensorSpec(MAX_BYTES, 1, torch.uint8)}
DIRECTIONS = ("to_host", "to_guest", "both")
# In full duplex, a party sends at most this many messages more than it has received: as many as a
# link accepts without blocking, because a party that blocks in send does not read. (With 16, both
# parties could block in send while neither reads.)
AHEAD = 8
_MIN_MESSAGES = 16
_MIN_BYTES = 1024
_MIN_GAP_S = 1e-7  # shorter than any real gap between two messages
MAX_HOST_S = 1200.0  # that a guest spends on one host; a link of 10 kbps takes 300
MAX_GUEST_S = 3600.0  # that a host waits for the guest, which measures other hosts as well
_SLACK, _SLACK_S = 1.05, 0.05  # two clocks run at slightly different speeds


@dataclass(frozen=True)
class Clocks:
    """A party's time: a monotonic clock, the time of day and sleeping."""

    clock: Callable[[], float] = time.perf_counter
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Probe:
    """A series of messages: their direction, number and sizes, and the pause before them."""

    number: int
    direction: str
    num_messages: int
    to_host: int  # bytes of a message
    to_guest: int
    pause_s: float = 0.0

    @staticmethod
    def one_way(number: int, direction: str, total: float, pause_s: float = 0.0) -> Probe:
        """A probe of about `total` bytes in one direction."""
        num_messages, size = _split(total)
        return Probe(number, direction, num_messages, size, size, pause_s)

    @staticmethod
    def both_ways(number: int, to_host: float, to_guest: float) -> Probe:
        """A probe in both directions at once, of about these bytes."""
        num_messages, _ = _split(max(to_host, to_guest))
        sizes = (_size(total, num_messages) for total in (to_host, to_guest))
        return Probe(number, "both", num_messages, *sizes)

    @staticmethod
    def from_message(message: Message) -> Probe:
        """Read the guest's request for a probe; raises ProtocolError."""
        body: Mapping[str, Any] = message.body or {}
        if body.get("way") not in DIRECTIONS:
            raise ProtocolError("FINDINGS: way: expected a direction to measure")
        return Probe(
            message.round,
            body["way"],
            integer(body, "messages", 2, MAX_MESSAGES),
            integer(body, "to_host", 1, MAX_BYTES),
            integer(body, "to_guest", 1, MAX_BYTES),
            number(body, "rest_s", 0.0, MAX_PAUSE_S),
        )

    def to_message(self) -> Message:
        """The guest's request for this probe."""
        body = {
            "do": "train",
            "number": self.number,
            "way": self.direction,
            "messages": self.num_messages,
            "to_host": self.to_host,
            "to_guest": self.to_guest,
            "rest_s": self.pause_s,
        }
        return Message(Kind.FINDINGS, self.number, body=body)

    @property
    def min_span_s(self) -> float:
        """The shortest plausible time between its first and its last arrival."""
        return (self.num_messages - 1) * _MIN_GAP_S

    def mbps(self, direction: str, span_s: float) -> float:
        """The rate at which it arrived; the first message only starts the clock."""
        size = HEADER.size + (self.to_host if direction == "to_host" else self.to_guest)
        return (self.num_messages - 1) * size * 8 / 1e6 / span_s


def _split(total: float) -> tuple[int, int]:
    """The number and the size of messages of about `total` bytes together."""
    num_messages = min(MAX_MESSAGES, max(_MIN_MESSAGES, -(-int(total) // MAX_BYTES)))
    return num_messages, _size(total, num_messages)


def _size(total: float, num_messages: int) -> int:
    return int(min(MAX_BYTES, max(_MIN_BYTES, total / num_messages)))


class Prober:
    """Sends and receives probes over one party's end of a link.

    After `max_s` seconds it raises ProtocolError: a peer could answer each message just in time.
    """

    def __init__(self, link: Link, clocks: Clocks, max_s: float) -> None:
        self.peer = link.peer
        self.clocks = clocks
        self._link = link
        self._max_s = max_s
        self._started = clocks.clock()
        # Random, so that nothing on the path can compress it.
        self._bytes = torch.frombuffer(bytearray(os.urandom(MAX_BYTES)), dtype=torch.uint8)

    async def send(self, probe: Probe, size: int) -> tuple[float, float]:
        """Send a probe; returns the seconds from first to last arrival, and until the report."""
        if probe.pause_s:
            self.clocks.sleep(probe.pause_s)
        started = self.clocks.clock()
        for part in range(probe.num_messages):
            await self._send_probe(probe, part, size)
        span_s = await self._receive_seconds(probe, "span_s", probe.min_span_s, started)
        elapsed_s = self.clocks.clock() - started
        await self._send_seconds(probe, elapsed_s=elapsed_s)
        return span_s, elapsed_s

    async def receive(self, probe: Probe, size: int) -> tuple[float, float]:
        """Receive a probe; returns the same as `send`."""
        await self._receive_probe(probe, 0, size)
        first = self.clocks.clock()
        for part in range(1, probe.num_messages):
            await self._receive_probe(probe, part, size)
        span_s = max(probe.min_span_s, self.clocks.clock() - first)
        await self._send_seconds(probe, span_s=span_s)
        return span_s, await self._receive_seconds(
            probe, "elapsed_s", max(0.0, span_s / _SLACK - _SLACK_S)
        )

    async def exchange(self, probe: Probe, sending: int, receiving: int) -> tuple[float, float]:
        """Send and receive at once; returns the seconds from first to last arrival, there and here.

        Neither side gets far ahead of the other, as in training.
        """
        started = first = self.clocks.clock()
        sent = 0
        for part in range(probe.num_messages):
            while sent < min(probe.num_messages, part + AHEAD):
                await self._send_probe(probe, sent, sending)
                sent += 1
            await self._receive_probe(probe, part, receiving)
            if part == 0:
                first = self.clocks.clock()
        span_s = max(probe.min_span_s, self.clocks.clock() - first)
        await self._send_seconds(probe, span_s=span_s)
        return await self._receive_seconds(probe, "span_s", probe.min_span_s, started), span_s

    async def send_message(self, message: Message) -> None:
        """Send one message within the time limit."""
        self._check_time()
        await self._link.send(message)

    async def receive_message(self) -> Message:
        """Receive one message within the time limit; waits at most for the link's deadline."""
        message = await self._link.receive()
        self._check_time()
        return message

    def _check_time(self) -> None:
        if self.clocks.clock() - self._started > self._max_s:
            raise ProtocolError(
                f"the measurement with {self.peer} did not end within {self._max_s:g} s"
            )

    async def _send_probe(self, probe: Probe, part: int, size: int) -> None:
        tensor = self._bytes[:size].reshape(-1, 1)
        await self.send_message(Message(Kind.PROBE, probe.number, part, tensor))

    async def _receive_probe(self, probe: Probe, part: int, size: int) -> None:
        require_rows(expect(await self.receive_message(), Kind.PROBE, probe.number, part), size)

    async def _send_seconds(self, probe: Probe, **seconds: float) -> None:
        await self.send_message(Message(Kind.FINDINGS, probe.number, body=seconds))

    async def _receive_seconds(
        self, probe: Probe, key: str, low: float, started: float | None = None
    ) -> float:
        """The seconds that the peer reports; at most those since we `started`."""
        message = expect(await self.receive_message(), Kind.FINDINGS, probe.number)
        high = MAX_S
        if started is not None:
            high = (self.clocks.clock() - started) * _SLACK + _SLACK_S
        return self.read_number(message, key, low, high)

    def read_number(self, message: Message, key: str, low: float, high: float) -> float:
        """A number that the peer sent; raises ProtocolError, which names the peer."""
        try:
            return number(message.body or {}, key, low, high)
        except ProtocolError as error:
            raise ProtocolError(f"from {self.peer}: {error}") from error
