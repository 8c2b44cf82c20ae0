"""A host waits for the guest's selection, but not forever."""

from __future__ import annotations

from itertools import count

import pytest

from celu.errors import PeerLost, ProtocolError
from celu.psi import selection
from celu.psi.selection import max_ready, receive_selection
from celu.transport.link import Link
from celu.transport.memory import CAPACITY, memory_links
from celu.transport.message import Kind, Message
from psi.parties import Outcomes, run_to_completion


def endless_ready(limit: int) -> tuple[Outcomes, int]:
    """The outcomes, and how many messages the host received."""
    to_host, to_guest = memory_links("guest", "host")

    async def guest() -> None:
        for _ in range(limit + CAPACITY + 10):  # ends, so that a host that never gives up fails
            await to_host.send(Message(Kind.READY))
        raise AssertionError("the host received every READY")

    links: dict[str, list[Link]] = {"guest": [to_host], "host": [to_guest]}
    host = receive_selection(to_guest, 8, limit)
    outcomes = run_to_completion({"guest": guest(), "host": host}, links)
    return outcomes, to_guest.traffic.received.messages


def test_a_guest_cannot_send_ready_more_often_than_other_hosts_can_have_chunks() -> None:
    outcomes, received = endless_ready(50)
    assert isinstance(outcomes["host"], ProtocolError), repr(outcomes["host"])
    assert "expected KEPT after at most 50 READY" in str(outcomes["host"])
    assert received == 51


def test_a_guest_cannot_hold_a_host_with_ready_for_more_than_a_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hours = count()
    monkeypatch.setattr(selection, "monotonic", lambda: 3600.0 * next(hours))
    outcomes, received = endless_ready(10_000)
    assert isinstance(outcomes["host"], PeerLost), repr(outcomes["host"])
    assert "guest has sent no selection for 24 hours" in str(outcomes["host"])
    assert received == 25


def test_the_limit_allows_the_largest_other_host() -> None:
    assert max_ready(chunk_rows=2048) > 2**28 // 2048
    assert max_ready(chunk_rows=2048) < 2**18
