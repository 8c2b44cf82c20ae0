"""Deliver each message once and in order, over connections that break and are replaced.

A party numbers its messages and buffers each until the peer acknowledges it: every header says how
many messages its sender has received. A connection starts with a greeting each way, the dialing
side's first, with the same count; then only the messages that the other side lacks are resent.

A greeting also has the token of the sending process and, if it is known, that of the peer's. A peer
with another token than before is a new process: messages in flight are lost, so the session cannot
continue (`PeerRestarted`).

This module does no I/O. Threads (`stream`) or a simulated clock (`chaos`) move the pieces and call
one method at a time.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from celu.errors import PeerRestarted, ProtocolError
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.wire import (
    HEADER,
    PIECE_BYTES,
    PartialMessage,
    decode_header,
    encode,
    encode_whole,
    num_bytes,
)

# The buffer of messages that the peer has not acknowledged yet is full at either limit ...
MAX_UNACKED_MESSAGES, MAX_UNACKED_BYTES = 1024, 64 * 1024 * 1024
# ... but always holds this many, of any size. A host fills its pipeline before it receives
# anything: both directions together must hold as many messages as rounds may be in flight.
MIN_UNACKED_MESSAGES = 32
# A message up to this size is one piece: each piece costs a carrier several changes of threads.
SMALL_MESSAGE_BYTES = 16 * 1024


class _Unacknowledged(NamedTuple):
    message: Message
    size: int
    enqueued_at: float


class Delivery:
    """The messages to and from one peer in one session, across all connections."""

    def __init__(self, peer: str, token: str | None = None) -> None:
        self.peer = peer
        self.token = token or secrets.token_hex(16)  # identifies this process in this session
        self.peer_token: str | None = None
        self.specs: Mapping[Kind, TensorSpec] = {}
        self.received = 0  # complete messages from the peer
        self.resent = 0  # messages that were started on more than one connection
        self._started = 0  # messages that were started on any connection
        self._unacked: deque[_Unacknowledged] = deque()
        self._unacked_bytes = 0
        self._first_unacked = 0  # number of the first message in `_unacked`

    @property
    def enqueued(self) -> int:
        """How many messages were enqueued for the peer in total."""
        return self._first_unacked + len(self._unacked)

    @property
    def unacknowledged(self) -> int:
        """How many enqueued messages the peer has not acknowledged."""
        return len(self._unacked)

    def has_room(self) -> bool:
        """Whether another message may be enqueued."""
        few = len(self._unacked) < MIN_UNACKED_MESSAGES or self._unacked_bytes < MAX_UNACKED_BYTES
        return few and len(self._unacked) < MAX_UNACKED_MESSAGES

    def enqueue(self, message: Message, now: float = 0.0) -> int:
        """Buffer a message, whose tensor must not change any more; returns its size on the wire."""
        size = num_bytes(message)
        self._unacked.append(_Unacknowledged(message, size, now))
        self._unacked_bytes += size
        return size

    def acknowledge(self, received: int) -> None:
        """Drop the first `received` messages; raises ProtocolError for an impossible count."""
        if not self._first_unacked <= received <= self._started:
            raise ProtocolError(
                f"expected {self.peer} to acknowledge between {self._first_unacked} and "
                f"{self._started} messages, got {received}"
            )
        while self._first_unacked < received:
            self._unacked_bytes -= self._unacked.popleft().size
            self._first_unacked += 1

    def start_sending(self, number: int) -> _Unacknowledged:
        """Return message `number`, which a connection is about to send."""
        self.resent += number < self._started
        self._started = max(self._started, number + 1)
        return self._unacked[number - self._first_unacked]


class ConnectionProtocol:
    """The state of one connection of a delivery; the side that `dials` sends its greeting first."""

    def __init__(self, delivery: Delivery, *, dials: bool, piece_bytes: int = PIECE_BYTES) -> None:
        self.piece_bytes = piece_bytes
        self.greeted = False  # the peer's greeting was accepted
        self.is_over = False  # ignore what arrives; send only what `next_piece` still returns
        self.enqueued_at = 0.0  # when the message of the latest piece was enqueued
        self.bytes_left: int | None = None  # of that message's tensor and header; None: no tensor
        self.received_bytes = 0  # size of the latest received message
        self._delivery = delivery
        self._dials = dials
        self._must_greet = dials
        self._pieces: Iterator[bytes] = iter(())
        self._next = 0  # number of the next message to send
        self._acknowledged = 0  # how many messages the latest header that was sent acknowledges
        self._partial: PartialMessage | None = None

    @property
    def unsent(self) -> int:
        """How many messages have not been started on this connection."""
        delivery = self._delivery
        return delivery.enqueued - self._next if self.greeted else delivery.unacknowledged

    @property
    def owes_acknowledgement(self) -> bool:
        """Whether messages were received that no header on this connection acknowledges."""
        return self._delivery.received > self._acknowledged

    @property
    def is_mid_message(self) -> bool:
        """Whether part of a message has arrived and more is due."""
        return self._partial is not None

    def next_piece(self) -> bytes | None:
        """The next piece to send; None if there is nothing to send now."""
        piece = next(self._pieces, None)
        if piece is not None:
            if self.bytes_left is not None:
                self.bytes_left -= len(piece)
            return piece
        delivery = self._delivery
        if self._must_greet:
            self._must_greet = False
            self._acknowledged = delivery.received
            return encode_whole(_greeting(delivery), 0, delivery.received)
        if not self.greeted or self._next >= delivery.enqueued:
            return None
        number, self._acknowledged = self._next, delivery.received
        message, size, self.enqueued_at = delivery.start_sending(number)
        self._next += 1
        if size <= SMALL_MESSAGE_BYTES and size <= self.piece_bytes:
            piece = encode_whole(message, number, delivery.received)
        else:
            self._pieces = encode(message, number, delivery.received, self.piece_bytes)
            piece = next(self._pieces)
        self.bytes_left = None if message.tensor is None else size - len(piece)
        return piece

    def heartbeat(self) -> bytes:
        """A heartbeat, which also acknowledges; only valid when `next_piece` returned None."""
        self.bytes_left = None
        self._acknowledged = self._delivery.received
        return encode_whole(Message(Kind.HEARTBEAT), self._next, self._delivery.received)

    def receive_piece(self, piece: bytes) -> Message | None:
        """Process a piece; returns the message that it completes, if any.

        Raises ProtocolError for a message that is not allowed, PeerRestarted for a greeting of
        another process than before. The session cannot continue after either.
        """
        if self.is_over:
            return None
        if self._partial is not None:
            self._partial.add(piece)
        else:
            self._receive_first(piece)
        if self._partial is None or self._partial.missing_bytes:
            return None
        message = self._partial.message(self._delivery.peer)
        self.received_bytes = self._partial.num_bytes
        self._partial = None
        if message.kind is Kind.GREETING:
            self._receive_greeting(message.body or {})
            return None
        self._delivery.received += 1
        return message

    def _receive_first(self, piece: bytes) -> None:
        """Process a header and, for a small message, its payload."""
        delivery = self._delivery
        number = delivery.received if self.greeted else 0
        header = decode_header(piece[: HEADER.size], number, delivery.specs)
        if len(piece) not in (HEADER.size, HEADER.size + header.length):
            raise ProtocolError(
                f"{header.kind.name}: expected a header with no payload or with all of its "
                f"{header.length} bytes, got {len(piece) - HEADER.size} of them"
            )
        if (header.kind is Kind.GREETING) == self.greeted:
            due = "messages" if self.greeted else "a greeting"
            raise ProtocolError(f"expected {due}, got {header.kind.name}")
        if self.greeted:
            delivery.acknowledge(header.received)
        if header.kind is not Kind.HEARTBEAT:
            self._partial = PartialMessage(header)
            if len(piece) > HEADER.size:
                self._partial.add(memoryview(piece)[HEADER.size :])

    def _receive_greeting(self, body: Mapping[str, object]) -> None:
        delivery = self._delivery
        token, knows, received = (body.get(key) for key in ("token", "knows", "received"))
        if not _is_token(token) or not (knows is None or _is_token(knows)):
            raise ProtocolError("GREETING: expected tokens of 32 hexadecimal digits")
        if not isinstance(received, int) or isinstance(received, bool):
            raise ProtocolError("GREETING: expected a number of messages")
        if delivery.peer_token not in (None, token):
            raise PeerRestarted(f"{delivery.peer} restarted")
        self._must_greet = not self._dials
        if knows not in (None, delivery.token):
            # It knows an earlier process of this party; our greeting shows the restart.
            self.is_over = True
            return
        delivery.acknowledge(received)
        delivery.peer_token = str(token)
        self._next = received
        self.greeted = True


def _greeting(delivery: Delivery) -> Message:
    body = {"token": delivery.token, "knows": delivery.peer_token, "received": delivery.received}
    return Message(Kind.GREETING, body=body)


def _is_token(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}", value) is not None
