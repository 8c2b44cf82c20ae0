"""Each message once and in order, whatever becomes of the connections."""

from __future__ import annotations

import random
from collections import deque

import pytest
import torch

from celu.errors import PeerRestarted, ProtocolError
from celu.transport.delivery import (
    FEW_MESSAGES,
    KEPT_BYTES,
    KEPT_MESSAGES,
    ConnectionProtocol,
    Delivery,
)
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.wire import encode
from fuzz.frames import Frame

SPECS = {Kind.ACTIVATION: TensorSpec(100, 8)}


def deliveries() -> tuple[Delivery, Delivery]:
    pair = Delivery("guest"), Delivery("host")
    for delivery in pair:
        delivery.specs = SPECS
    return pair


def tensor(number: int, rows: int = 1) -> Message:
    return Message(Kind.ACTIVATION, number, tensor=torch.full((rows, 8), float(number)))


def connect(caller: Delivery, called: Delivery) -> tuple[ConnectionProtocol, ConnectionProtocol]:
    """Two ends of a connection, greeted."""
    ours, theirs = ConnectionProtocol(caller, calls=True), ConnectionProtocol(called, calls=False)
    carry(ours, theirs)
    carry(theirs, ours)
    return ours, theirs


def carry(sender: ConnectionProtocol, receiver: ConnectionProtocol) -> list[Message]:
    """All that one side has to say, at the other."""
    arrived = []
    while (piece := sender.outgoing()) is not None:
        message = receiver.take(piece)
        if message is not None:
            arrived.append(message)
    return arrived


def rounds(messages: list[Message]) -> list[int]:
    return [message.round for message in messages]


@pytest.mark.parametrize("seed", range(40))
def test_each_message_arrives_once_in_order_over_connections_cut_anywhere(seed: int) -> None:
    chance = random.Random(seed)
    sides = deliveries()
    sent: tuple[list[Message], ...] = ([], [])
    got: tuple[list[Message], ...] = ([], [])
    for _ in range(2000):
        if min(map(len, got)) == 20:
            break
        connections = [
            ConnectionProtocol(side, calls=i == 0, piece_bytes=64) for i, side in enumerate(sides)
        ]
        wires: tuple[deque[bytes], ...] = (deque(), deque())  # what each side has sent
        for _ in range(chance.randrange(1, 120)):  # then it is cut, and all on the wire is lost
            for i, (side, connection) in enumerate(zip(sides, connections, strict=True)):
                if len(sent[i]) < 20 and chance.random() < 0.3:
                    sent[i].append(tensor(len(sent[i]), chance.randrange(1, 20)))
                    side.give(sent[i][-1])
                piece = connection.outgoing()
                if piece is None and connection.greeted and chance.random() < 0.2:
                    piece = connection.heartbeat()
                if piece is not None:
                    wires[i].append(piece)
                while wires[1 - i] and chance.random() < 0.7:
                    message = connection.take(wires[1 - i].popleft())
                    if message is not None:
                        got[i].append(message)
    for i in range(2):
        assert rounds(got[i]) == list(range(20))
        for ours, theirs in zip(got[i], sent[1 - i], strict=True):
            assert ours.tensor is not None and theirs.tensor is not None
            assert torch.equal(ours.tensor, theirs.tensor)


def test_only_what_the_peer_lacks_is_sent_again() -> None:
    host, guest = deliveries()
    for number in range(5):
        host.give(tensor(number))
    ours, theirs = connect(host, guest)
    arrived = []
    while len(arrived) < 3:
        piece = ours.outgoing()
        assert piece is not None
        message = theirs.take(piece)
        arrived += [message] if message else []
    ours, theirs = connect(host, guest)
    assert host.unconfirmed == 2
    assert rounds(carry(ours, theirs)) == [3, 4]


def test_a_message_that_was_cut_off_is_sent_again_whole() -> None:
    host, guest = deliveries()
    host.give(tensor(0))
    ours, theirs = connect(host, guest)
    header = ours.outgoing()
    assert header is not None and theirs.take(header) is None
    ours, theirs = connect(host, guest)
    assert rounds(carry(ours, theirs)) == [0]
    assert host.resent == 1


def test_what_is_received_is_confirmed_by_a_message_or_a_pulse() -> None:
    host, guest = deliveries()
    for number in range(2):
        host.give(tensor(number))
    ours, theirs = connect(host, guest)
    carry(ours, theirs)
    assert host.unconfirmed == 2
    assert ours.take(theirs.heartbeat()) is None
    assert host.unconfirmed == 0


def test_a_process_that_began_anew_is_told_from_a_broken_connection() -> None:
    host, guest = deliveries()
    connect(host, guest)
    with pytest.raises(PeerRestarted, match="host began anew"):
        connect(deliveries()[0], guest)
    again = deliveries()[1]
    ours, theirs = ConnectionProtocol(host, calls=True), ConnectionProtocol(again, calls=False)
    carry(ours, theirs)
    assert theirs.is_over and again.their_token is None, "it was not meant for this process"
    with pytest.raises(PeerRestarted, match="guest began anew"):
        carry(theirs, ours)


def test_a_greeting_whose_answer_was_lost_can_be_said_again() -> None:
    host, guest = deliveries()
    carry(ConnectionProtocol(host, calls=True), ConnectionProtocol(guest, calls=False))
    host.give(tensor(0))
    ours, theirs = connect(host, guest)
    assert rounds(carry(ours, theirs)) == [0]


GREETING = {"token": "0" * 32, "knows": None, "received": 0}


@pytest.mark.parametrize(
    "changes",
    [
        {"token": None},
        {"token": "0" * 31},
        {"token": "G" * 32},
        {"token": ["0" * 32]},
        {"knows": "x"},
        {"knows": 1},
        {"received": None},
        {"received": True},
        {"received": 0.0},
        {"received": "0"},
        {"received": -1},
        {"received": 1},
        {"received": 2**63},
    ],
    ids=str,
)
def test_a_greeting_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    guest = deliveries()[1]
    connection = ConnectionProtocol(guest, calls=False)
    with pytest.raises(ProtocolError):
        for piece in encode(Message(Kind.GREETING, body={**GREETING, **changes}), 0):
            connection.take(piece)
    assert not connection.greeted and guest.their_token is None


def greeted() -> tuple[Delivery, ConnectionProtocol]:
    guest = deliveries()[1]
    connection = ConnectionProtocol(guest, calls=False)
    for piece in encode(Message(Kind.GREETING, body=GREETING), 0):
        connection.take(piece)
    return guest, connection


@pytest.mark.parametrize(
    "pieces",
    [
        encode(Message(Kind.GREETING, body=GREETING), 0),
        encode(Message(Kind.READY), 1),
        encode(Message(Kind.READY), 0, received=1),
        encode(Message(Kind.HEARTBEAT), 0, received=2**64 - 1),
        encode(Message(Kind.HEARTBEAT), 7),
    ],
    ids=["a second greeting", "a gap", "a claim", "a heartbeat's claim", "a heartbeat out of turn"],
)
def test_what_cannot_follow_a_greeting_is_refused(pieces: object) -> None:
    guest, connection = greeted()
    with pytest.raises(ProtocolError):
        for piece in pieces:  # type: ignore[attr-defined]
            connection.take(piece)
    assert guest.received == 0


@pytest.mark.parametrize("kind", [Kind.READY, Kind.HEARTBEAT, Kind.ACTIVATION, Kind.FAILURE])
def test_nothing_goes_before_a_greeting(kind: Kind) -> None:
    message = tensor(0) if kind is Kind.ACTIVATION else Message(kind)
    guest = deliveries()[1]
    with pytest.raises(ProtocolError, match="expected a greeting"):
        ConnectionProtocol(guest, calls=False).take(next(encode(message, 0)))


def test_a_peer_cannot_take_back_what_it_confirmed() -> None:
    guest, connection = greeted()
    guest.give(tensor(0))
    while connection.outgoing() is not None:
        pass
    connection.take(next(encode(Message(Kind.HEARTBEAT), 0, received=1)))
    with pytest.raises(ProtocolError, match="between 1 and 1 messages"):
        connection.take(next(encode(Message(Kind.HEARTBEAT), 0, received=0)))


def test_what_a_message_took_on_the_wire_is_told_at_both_ends() -> None:
    host, guest = deliveries()
    ours, theirs = connect(host, guest)
    for message in (tensor(0, rows=3), Message(Kind.READY, body={"a": [1, "b"]})):
        given = host.give(message)
        pieces = list(iter(ours.outgoing, None))
        assert [theirs.take(piece) for piece in pieces][-1] is not None
        assert given == theirs.taken_bytes == sum(map(len, pieces))


def test_a_body_is_counted_as_the_peer_wrote_it() -> None:
    guest, connection = greeted()
    frame = Frame.of(Message(Kind.READY, body={"a": 1}), 0)
    spaced = frame.with_payload(frame.payload + b" " * 100, honest=True)
    assert [connection.take(piece) for piece in spaced.pieces()][-1] is not None
    assert connection.taken_bytes == sum(map(len, spaced.pieces()))
    assert guest.received == 1


def test_what_is_kept_for_a_peer_is_bounded() -> None:
    small, large = deliveries()
    for number in range(KEPT_MESSAGES):
        assert small.has_room()
        small.give(Message(Kind.READY, number))
    assert not small.has_room()
    rows = KEPT_BYTES // FEW_MESSAGES // 32
    big = Message(Kind.ACTIVATION, tensor=torch.zeros(1, 8).expand(rows, 8))
    for _ in range(FEW_MESSAGES):
        assert large.has_room()
        large.give(big)
    assert not large.has_room()
