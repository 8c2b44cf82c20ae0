"""One connection replaces another, step by step, with threads at known points."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from celu.errors import PeerLost
from celu.transport.connection import Connection
from celu.transport.delivery import ConnectionProtocol, Delivery
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message
from celu.transport.stream import QUEUED_MESSAGES, StreamLink

WAIT_S = 600.0


class Peer:
    """The dialing side: a real delivery whose pieces the test moves."""

    def __init__(self) -> None:
        self.delivery = Delivery("guest")
        self.connection = self.dial()

    def dial(self) -> ConnectionProtocol:
        self.connection = ConnectionProtocol(self.delivery, dials=True)
        return self.connection

    def pieces(self) -> list[bytes]:
        """All pieces that can be sent now."""
        return list(iter(self.connection.next_piece, None))

    def send(self, number: int) -> list[bytes]:
        self.delivery.enqueue(Message(Kind.READY, number))
        return self.pieces()


def deliver(link: StreamLink, connection: Connection, pieces: list[bytes]) -> None:
    for piece in pieces:
        link.on_piece(connection, piece)


def wait_for(what: str, event: threading.Event) -> None:
    assert event.wait(WAIT_S), what


def answer(link: StreamLink, connection: Connection, peer: Peer) -> None:
    """Deliver the link's greeting to the peer."""
    while not peer.connection.greeted:
        piece = link.next_piece(connection)
        assert piece is not None
        peer.connection.receive_piece(piece)


@pytest.fixture
def link() -> Iterator[StreamLink]:
    link = StreamLink("host", deadline_s=WAIT_S, heartbeat_s=WAIT_S)
    yield link
    with link._waits.lock:
        link._closing = link._closed = True
        link._wake_all()


def test_late_messages_of_an_old_connection_are_not_delivered_twice(link: StreamLink) -> None:
    peer = Peer()
    old = link.new_connection(dials=False)
    deliver(link, old, peer.pieces())
    answer(link, old, peer)
    deliver(link, old, peer.send(0))
    in_flight = [peer.send(number) for number in (1, 2, 3)]
    # The peer received nothing for a while and dials again; its other messages are still in flight
    # on the old connection, which does not end at once.
    aborted = threading.Event()
    old.cancel = aborted.set
    peer.dial()
    new = link.new_connection(dials=False)
    taking_over = threading.Thread(target=deliver, args=(link, new, peer.pieces()))
    taking_over.start()
    wait_for("the old connection is not aborted", aborted)
    answer(link, new, peer)  # it says that we received one message
    for pieces in in_flight:
        deliver(link, old, pieces)
    old.mark_ended(PeerLost("closed"))
    taking_over.join(WAIT_S)
    deliver(link, new, peer.pieces())
    assert peer.delivery.resent == 3
    assert [run_blocking(link.receive()).round for _ in range(4)] == [0, 1, 2, 3]
    assert not link._incoming


def test_a_message_that_waits_for_room_precedes_those_of_the_next_connection(
    link: StreamLink,
) -> None:
    peer = Peer()
    old = link.new_connection(dials=False)
    deliver(link, old, peer.pieces())
    answer(link, old, peer)
    for number in range(QUEUED_MESSAGES):
        deliver(link, old, peer.send(number))
    one_more, lost = (peer.send(QUEUED_MESSAGES + i) for i in range(2))
    assert lost  # it is resent

    def receive() -> None:
        deliver(link, old, one_more)  # waits for room
        old.mark_ended(PeerLost("aborted"))

    waiting = threading.Thread(target=receive)
    waiting.start()
    give_up_at = time.monotonic() + WAIT_S
    while link._delivery.received <= QUEUED_MESSAGES:
        assert time.monotonic() < give_up_at, "the message is not received"
        time.sleep(0.001)
    peer.dial()
    new = link.new_connection(dials=False)
    taking_over = threading.Thread(target=deliver, args=(link, new, peer.pieces()))
    taking_over.start()
    got = [run_blocking(link.receive()).round for _ in range(QUEUED_MESSAGES)]
    for thread in (taking_over, waiting):
        thread.join(WAIT_S)
    answer(link, new, peer)
    deliver(link, new, peer.pieces())
    got += [run_blocking(link.receive()).round for _ in range(2)]
    assert got == list(range(QUEUED_MESSAGES + 2))
