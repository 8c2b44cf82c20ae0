"""One connection takes over from another, step by step: threads are where the test has them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from celu.errors import PeerLost
from celu.transport.delivery import ConnectionProtocol, Delivery
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message
from celu.transport.stream import QUEUED_MESSAGES, Connection, StreamLink

WAIT_S = 20.0


class Peer:
    """Who calls: a real delivery, of which one connection at a time is moved by hand."""

    def __init__(self) -> None:
        self.delivery = Delivery("guest")
        self.connection = self.call()

    def call(self) -> ConnectionProtocol:
        self.connection = ConnectionProtocol(self.delivery, calls=True)
        return self.connection

    def pieces(self) -> list[bytes]:
        """All that is to be sent for now."""
        return list(iter(self.connection.outgoing, None))

    def say(self, number: int) -> list[bytes]:
        self.delivery.give(Message(Kind.READY, number))
        return self.pieces()


def bring(link: StreamLink, connection: Connection, pieces: list[bytes]) -> None:
    for piece in pieces:
        link.arrived(connection, piece)


def until(what: str, event: threading.Event) -> None:
    assert event.wait(WAIT_S), what


def answered(link: StreamLink, connection: Connection, peer: Peer) -> None:
    """The link's greeting on a connection, taken by the peer."""
    while not peer.connection.greeted:
        piece = link.next_piece(connection)
        assert piece is not None
        peer.connection.take(piece)


@pytest.fixture
def link() -> Iterator[StreamLink]:
    link = StreamLink("host", deadline_s=WAIT_S, heartbeat_s=WAIT_S)
    yield link
    with link._changed:
        link._closing = link._closed = True
        link._changed.notify_all()


def test_what_an_old_connection_still_brings_is_not_taken_twice(link: StreamLink) -> None:
    peer = Peer()
    old = link.connection(calls=False)
    bring(link, old, peer.pieces())
    answered(link, old, peer)
    bring(link, old, peer.say(0))
    on_the_way = [peer.say(number) for number in (1, 2, 3)]
    # The peer has heard nothing for a while and calls anew; the rest of what it said is still on
    # its way over the old connection, which does not end at once.
    cut = threading.Event()
    old.cancel = cut.set
    peer.call()
    new = link.connection(calls=False)
    taking_over = threading.Thread(target=bring, args=(link, new, peer.pieces()))
    taking_over.start()
    until("the old connection is cut", cut)
    answered(link, new, peer)  # we have one message
    for pieces in on_the_way:
        bring(link, old, pieces)
    old.end(PeerLost("at last"))
    taking_over.join(WAIT_S)
    bring(link, new, peer.pieces())
    assert peer.delivery.resent == 3
    assert [run_blocking(link.receive()).round for _ in range(4)] == [0, 1, 2, 3]
    assert not link._incoming


def test_a_message_that_waits_for_room_goes_before_those_of_the_next_connection(
    link: StreamLink,
) -> None:
    peer = Peer()
    old = link.connection(calls=False)
    bring(link, old, peer.pieces())
    answered(link, old, peer)
    for number in range(QUEUED_MESSAGES):
        bring(link, old, peer.say(number))
    one_more, lost = (peer.say(QUEUED_MESSAGES + i) for i in range(2))
    assert lost  # it is sent again

    def pump() -> None:
        bring(link, old, one_more)  # waits for room
        old.end(PeerLost("cut"))

    waiting = threading.Thread(target=pump)
    waiting.start()
    with link._changed:
        assert link._changed.wait_for(lambda: link._delivery.received > QUEUED_MESSAGES, WAIT_S)
    peer.call()
    new = link.connection(calls=False)
    taking_over = threading.Thread(target=bring, args=(link, new, peer.pieces()))
    taking_over.start()
    got = [run_blocking(link.receive()).round for _ in range(QUEUED_MESSAGES)]
    for thread in (taking_over, waiting):
        thread.join(WAIT_S)
    answered(link, new, peer)
    bring(link, new, peer.pieces())
    got += [run_blocking(link.receive()).round for _ in range(2)]
    assert got == list(range(QUEUED_MESSAGES + 2))
