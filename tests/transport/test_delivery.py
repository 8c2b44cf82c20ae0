"""Each message is delivered once and in order, over connections that break at any point."""

from __future__ import annotations

import random
from collections import deque

import pytest
import torch

from celu.errors import PeerRestarted, ProtocolError
from celu.transport.delivery import (
    MAX_UNACKED_BYTES,
    MAX_UNACKED_MESSAGES,
    MIN_UNACKED_MESSAGES,
    SMALL_MESSAGE_BYTES,
    ConnectionProtocol,
    Delivery,
)
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.wire import HEADER, encode
from fuzz.frames import Frame

SPECS = {Kind.ACTIVATION: TensorSpec(1000, 8)}


def deliveries() -> tuple[Delivery, Delivery]:
    pair = Delivery("guest"), Delivery("host")
    for delivery in pair:
        delivery.specs = SPECS
    return pair


def tensor(number: int, rows: int = 1) -> Message:
    return Message(Kind.ACTIVATION, number, tensor=torch.full((rows, 8), float(number)))


def connect(client: Delivery, server: Delivery) -> tuple[ConnectionProtocol, ConnectionProtocol]:
    """Two ends of a connection that have exchanged their greetings."""
    ours, theirs = ConnectionProtocol(client, dials=True), ConnectionProtocol(server, dials=False)
    transfer(ours, theirs)
    transfer(theirs, ours)
    return ours, theirs


def transfer(sender: ConnectionProtocol, receiver: ConnectionProtocol) -> list[Message]:
    """Move all pieces that one side has to send; returns the messages they complete."""
    arrived = []
    while (piece := sender.next_piece()) is not None:
        message = receiver.receive_piece(piece)
        if message is not None:
            arrived.append(message)
    return arrived


def rounds(messages: list[Message]) -> list[int]:
    return [message.round for message in messages]


@pytest.mark.parametrize("seed", range(40))
def test_each_message_arrives_once_in_order_over_connections_cut_anywhere(seed: int) -> None:
    rng = random.Random(seed)
    sides = deliveries()
    sent: tuple[list[Message], ...] = ([], [])
    got: tuple[list[Message], ...] = ([], [])
    for _ in range(2000):
        if min(map(len, got)) == 20:
            break
        connections = [
            ConnectionProtocol(side, dials=i == 0, piece_bytes=rng.choice((64, 300)))
            for i, side in enumerate(sides)
        ]
        in_flight: tuple[deque[bytes], ...] = (deque(), deque())  # by sender
        for _ in range(rng.randrange(1, 120)):  # then it breaks, and what is in flight is lost
            for i, (side, connection) in enumerate(zip(sides, connections, strict=True)):
                if len(sent[i]) < 20 and rng.random() < 0.3:
                    sent[i].append(tensor(len(sent[i]), rng.randrange(1, 20)))
                    side.enqueue(sent[i][-1])
                piece = connection.next_piece()
                if piece is None and connection.greeted and rng.random() < 0.2:
                    piece = connection.heartbeat()
                if piece is not None:
                    in_flight[i].append(piece)
                while in_flight[1 - i] and rng.random() < 0.7:
                    message = connection.receive_piece(in_flight[1 - i].popleft())
                    if message is not None:
                        got[i].append(message)
    for i in range(2):
        assert rounds(got[i]) == list(range(20))
        for ours, theirs in zip(got[i], sent[1 - i], strict=True):
            assert ours.tensor is not None and theirs.tensor is not None
            assert torch.equal(ours.tensor, theirs.tensor)


def test_only_messages_that_the_peer_lacks_are_resent() -> None:
    host, guest = deliveries()
    for number in range(5):
        host.enqueue(tensor(number))
    ours, theirs = connect(host, guest)
    arrived = []
    while len(arrived) < 3:
        piece = ours.next_piece()
        assert piece is not None
        message = theirs.receive_piece(piece)
        arrived += [message] if message else []
    ours, theirs = connect(host, guest)
    assert host.unacknowledged == 2
    assert rounds(transfer(ours, theirs)) == [3, 4]


def test_a_message_that_arrived_in_part_is_resent_from_its_start() -> None:
    host, guest = deliveries()
    host.enqueue(tensor(0, rows=1000))
    ours, theirs = connect(host, guest)
    header = ours.next_piece()
    assert header is not None and theirs.receive_piece(header) is None
    ours, theirs = connect(host, guest)
    assert rounds(transfer(ours, theirs)) == [0]
    assert host.resent == 1


def test_a_heartbeat_acknowledges_received_messages() -> None:
    host, guest = deliveries()
    for number in range(2):
        host.enqueue(tensor(number))
    ours, theirs = connect(host, guest)
    transfer(ours, theirs)
    assert host.unacknowledged == 2
    assert ours.receive_piece(theirs.heartbeat()) is None
    assert host.unacknowledged == 0


def test_a_small_message_is_one_piece_and_a_large_one_starts_with_its_header() -> None:
    host, guest = deliveries()
    ours, theirs = connect(host, guest)
    for message in (tensor(0), Message(Kind.READY, 1, body={"a": 1})):
        size = host.enqueue(message)
        (piece,) = iter(ours.next_piece, None)
        assert len(piece) == size <= SMALL_MESSAGE_BYTES
        arrived = theirs.receive_piece(piece)
        assert arrived is not None and arrived.kind is message.kind
    size = host.enqueue(tensor(2, rows=1000))
    assert size > SMALL_MESSAGE_BYTES
    assert list(map(len, iter(ours.next_piece, None))) == [HEADER.size, size - HEADER.size]


@pytest.mark.parametrize("change", [-1, 1])
def test_a_header_with_a_payload_of_another_size_is_refused_and_changes_nothing(
    change: int,
) -> None:
    host, guest = deliveries()
    guest.enqueue(Message(Kind.READY))
    ours, theirs = connect(host, guest)
    transfer(theirs, ours)
    host.enqueue(tensor(0))
    piece = ours.next_piece()
    assert piece is not None
    with pytest.raises(ProtocolError, match=f"all of its 32 bytes, got {32 + change} of them"):
        theirs.receive_piece((piece + b"x")[: len(piece) + change])
    assert (guest.received, guest.unacknowledged) == (0, 1)
    assert theirs.receive_piece(piece) is not None


def test_a_connection_knows_whether_its_peer_waits_for_an_acknowledgement() -> None:
    host, guest = deliveries()
    ours, theirs = connect(host, guest)
    host.enqueue(tensor(0))
    transfer(ours, theirs)
    assert theirs.owes_acknowledgement
    guest.enqueue(tensor(0))
    transfer(theirs, ours)
    assert not theirs.owes_acknowledgement, "the header of the message acknowledges"
    assert host.unacknowledged == 0 and ours.owes_acknowledgement
    theirs.receive_piece(ours.heartbeat())
    assert not ours.owes_acknowledgement
    ours, theirs = connect(host, guest)
    assert not ours.owes_acknowledgement, "the greeting acknowledges"


def test_a_restarted_peer_is_distinguished_from_a_broken_connection() -> None:
    host, guest = deliveries()
    connect(host, guest)
    with pytest.raises(PeerRestarted, match="host restarted"):
        connect(deliveries()[0], guest)
    again = deliveries()[1]
    ours, theirs = ConnectionProtocol(host, dials=True), ConnectionProtocol(again, dials=False)
    transfer(ours, theirs)
    assert theirs.is_over and again.peer_token is None, "it was meant for another process"
    with pytest.raises(PeerRestarted, match="guest restarted"):
        transfer(theirs, ours)


def test_a_greeting_can_be_repeated_if_the_answer_was_lost() -> None:
    host, guest = deliveries()
    transfer(ConnectionProtocol(host, dials=True), ConnectionProtocol(guest, dials=False))
    host.enqueue(tensor(0))
    ours, theirs = connect(host, guest)
    assert rounds(transfer(ours, theirs)) == [0]


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
def test_an_invalid_greeting_is_refused(changes: dict[str, object]) -> None:
    guest = deliveries()[1]
    connection = ConnectionProtocol(guest, dials=False)
    with pytest.raises(ProtocolError):
        for piece in encode(Message(Kind.GREETING, body={**GREETING, **changes}), 0):
            connection.receive_piece(piece)
    assert not connection.greeted and guest.peer_token is None


def greeted() -> tuple[Delivery, ConnectionProtocol]:
    guest = deliveries()[1]
    connection = ConnectionProtocol(guest, dials=False)
    for piece in encode(Message(Kind.GREETING, body=GREETING), 0):
        connection.receive_piece(piece)
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
    ids=[
        "second greeting",
        "gap",
        "false ack",
        "false ack of a heartbeat",
        "heartbeat out of order",
    ],
)
def test_an_invalid_message_after_the_greeting_is_refused(pieces: object) -> None:
    guest, connection = greeted()
    with pytest.raises(ProtocolError):
        for piece in pieces:  # type: ignore[attr-defined]
            connection.receive_piece(piece)
    assert guest.received == 0


@pytest.mark.parametrize("kind", [Kind.READY, Kind.HEARTBEAT, Kind.ACTIVATION, Kind.FAILURE])
def test_nothing_is_accepted_before_the_greeting(kind: Kind) -> None:
    message = tensor(0) if kind is Kind.ACTIVATION else Message(kind)
    guest = deliveries()[1]
    with pytest.raises(ProtocolError, match="expected a greeting"):
        ConnectionProtocol(guest, dials=False).receive_piece(next(encode(message, 0)))


def test_a_peer_cannot_take_back_an_acknowledgement() -> None:
    guest, connection = greeted()
    guest.enqueue(tensor(0))
    while connection.next_piece() is not None:
        pass
    connection.receive_piece(next(encode(Message(Kind.HEARTBEAT), 0, received=1)))
    with pytest.raises(ProtocolError, match="between 1 and 1 messages"):
        connection.receive_piece(next(encode(Message(Kind.HEARTBEAT), 0, received=0)))


def test_both_ends_count_the_bytes_that_were_on_the_wire() -> None:
    host, guest = deliveries()
    ours, theirs = connect(host, guest)
    for message in (tensor(0, rows=3), Message(Kind.READY, body={"a": [1, "b"]})):
        size = host.enqueue(message)
        pieces = list(iter(ours.next_piece, None))
        assert [theirs.receive_piece(piece) for piece in pieces][-1] is not None
        assert size == theirs.received_bytes == sum(map(len, pieces))


def test_a_body_is_counted_as_the_peer_wrote_it() -> None:
    guest, connection = greeted()
    frame = Frame.of(Message(Kind.READY, body={"a": 1}), 0)
    spaced = frame.with_payload(frame.payload + b" " * 100, honest=True)
    assert [connection.receive_piece(piece) for piece in spaced.pieces()][-1] is not None
    assert connection.received_bytes == sum(map(len, spaced.pieces()))
    assert guest.received == 1


def test_the_buffer_of_unacknowledged_messages_is_bounded() -> None:
    small, large = deliveries()
    for number in range(MAX_UNACKED_MESSAGES):
        assert small.has_room()
        small.enqueue(Message(Kind.READY, number))
    assert not small.has_room()
    rows = MAX_UNACKED_BYTES // MIN_UNACKED_MESSAGES // 32
    big = Message(Kind.ACTIVATION, tensor=torch.zeros(1, 8).expand(rows, 8))
    for _ in range(MIN_UNACKED_MESSAGES):
        assert large.has_room()
        large.enqueue(big)
    assert not large.has_room()
