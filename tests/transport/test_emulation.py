"""The link emulator, on a clock that advances only by sleeping or when a test sets it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from celu.transport.emulation import LinkEmulator
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message
from celu.transport.stream import StreamLink
from celu.transport.wire import encode

MEGABYTE = 1_000_000  # takes 1 s at 8 Mbps


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def emulator(clock: Clock, delay_s: float = 0.0) -> LinkEmulator:
    return LinkEmulator(mbps=8.0, delay_s=delay_s, clock=clock, sleep=clock.sleep)


def arrivals(clock: Clock, on: LinkEmulator, *pieces: tuple[int, float]) -> list[float]:
    arrived = []
    for num_bytes, sent_at in pieces:
        on.pace(num_bytes, sent_at)
        arrived.append(clock.now)
    return arrived


def test_a_piece_takes_its_bytes_over_the_bandwidth_and_then_the_delay() -> None:
    clock = Clock()
    assert arrivals(clock, emulator(clock, 0.25), (MEGABYTE, 100.0)) == [101.25]


def test_pieces_sent_together_leave_one_after_another() -> None:
    clock = Clock()
    pieces = [(MEGABYTE, 100.0), (MEGABYTE // 2, 100.0), (MEGABYTE, 100.0)]
    assert arrivals(clock, emulator(clock), *pieces) == [101.0, 101.5, 102.5]


def test_the_delay_of_one_piece_does_not_hold_up_the_next() -> None:
    clock = Clock()
    pieces = [(MEGABYTE, 100.0)] * 4
    assert arrivals(clock, emulator(clock, delay_s=10), *pieces) == [111.0, 112.0, 113.0, 114.0]


def test_a_piece_on_an_idle_link_starts_when_it_is_sent() -> None:
    clock = Clock()
    slow = emulator(clock, 0.5)
    assert arrivals(clock, slow, (MEGABYTE, 100.0)) == [101.5]
    clock.now = 200.0
    assert arrivals(clock, slow, (MEGABYTE, 200.0)) == [201.5]


def test_a_piece_that_waited_for_its_carrier_counts_from_when_it_was_sent() -> None:
    clock = Clock()
    slow = emulator(clock)
    clock.now = 100.75  # sent at 100, but the sending thread runs only now
    assert arrivals(clock, slow, (MEGABYTE, 100.0)) == [101.0]


def test_a_piece_that_has_already_arrived_does_not_sleep() -> None:
    clock = Clock()
    slow = emulator(clock)
    clock.now = 150.0
    assert arrivals(clock, slow, (MEGABYTE, 100.0)) == [150.0]


def test_two_emulators_do_not_share_their_bandwidth() -> None:
    clock = Clock()
    assert arrivals(clock, emulator(clock), (MEGABYTE, 100.0)) == [101.0]
    assert arrivals(clock, emulator(clock), (MEGABYTE, 101.0)) == [102.0]


def test_a_link_paces_every_byte_that_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    link = StreamLink("bank", deadline_s=1, emulator=emulator(clock, delay_s=0.5))
    connection = link.new_connection(dials=True)
    greeting = {"token": "0" * 32, "knows": None, "received": 0}
    for piece in encode(Message(Kind.GREETING, body=greeting), 0):
        link.on_piece(connection, piece)
    monkeypatch.setattr("celu.transport.stream.time.monotonic", clock)
    for _ in range(2):
        run_blocking(link.send(Message(Kind.ACTIVATION, tensor=torch.ones(1000, 250))))
    sending, pieces = connection.outgoing_pieces(), []
    while sum(len(piece) for piece in pieces) < link.traffic.sent.total_bytes:
        pieces.append(next(sending))
    sending.close()
    sent = sum(len(piece) for piece in pieces)  # includes the greeting
    assert clock.now == pytest.approx(100 + sent * 8 / 8e6 + 0.5)
