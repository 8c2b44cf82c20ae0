"""Each message once and in order, over connections that come and go. Moves nothing itself.

A party numbers what it sends and keeps it until its peer says that it has it: every header says
how many messages its sender has received. A connection begins with a greeting each way, the
caller's first, that says the same; what the other side lacks is then sent again, and nothing else.

A greeting also names the process that speaks, by a token of its own, and the one it believes to
speak to. A connection of another process than before is not a continuation: whatever was in
flight is gone with the old one (`PeerRestarted`).

Threads (`stream`) or a simulator's clock (`chaos`) move the pieces; they call one method at a time.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from celu.errors import PeerRestarted, ProtocolError
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.wire import PIECE_BYTES, Assembly, decode_header, encode, num_bytes

# What may be kept for a peer that has not said yet that it has it.
KEPT_MESSAGES, KEPT_BYTES = 1024, 64 * 1024 * 1024
FEW_MESSAGES = 16  # ... so many always, however large


@dataclass(frozen=True)
class _Kept:
    message: Message
    size: int
    given_at: float


class Delivery:
    """What was said to one peer and heard from it, whichever connection carries it."""

    def __init__(self, peer: str, token: str | None = None) -> None:
        self.peer = peer
        self.token = token or secrets.token_hex(16)  # this process's, in this conversation
        self.their_token: str | None = None
        self.specs: Mapping[Kind, TensorSpec] = {}
        self.received = 0  # messages of the peer that we have, whole
        self.resent = 0  # messages that were begun on more than one connection
        self._sent = 0  # messages that were begun at all
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._first = 0  # the number of the first that is kept

    @property
    def given(self) -> int:
        """How many messages there are for the peer, in all."""
        return self._first + len(self._kept)

    @property
    def unconfirmed(self) -> int:
        """How many of them the peer is not known to have."""
        return len(self._kept)

    def has_room(self) -> bool:
        """Whether another message may be given."""
        few = len(self._kept) < FEW_MESSAGES or self._kept_bytes < KEPT_BYTES
        return few and len(self._kept) < KEPT_MESSAGES

    def give(self, message: Message, now: float = 0.0) -> int:
        """A message for the peer, whose tensor must not change any more; its bytes on a wire."""
        size = num_bytes(message)
        self._kept.append(_Kept(message, size, now))
        self._kept_bytes += size
        return size

    def confirm(self, received: int) -> None:
        """The peer has so many of our messages; raises ProtocolError where it cannot."""
        if not self._first <= received <= self._sent:
            raise ProtocolError(
                f"expected {self.peer} to have between {self._first} and {self._sent} messages, "
                f"got a claim of {received}"
            )
        while self._first < received:
            self._kept_bytes -= self._kept.popleft().size
            self._first += 1

    def begin(self, number: int) -> _Kept:
        """The message of a number, about to be sent."""
        self.resent += number < self._sent
        self._sent = max(self._sent, number + 1)
        return self._kept[number - self._first]


class ConnectionProtocol:
    """The share of one connection in a delivery; `calls` is the side that speaks first."""

    def __init__(self, delivery: Delivery, *, calls: bool, piece_bytes: int = PIECE_BYTES) -> None:
        self.piece_bytes = piece_bytes
        self.greeted = False  # the peer's greeting was accepted
        self.is_over = False  # what arrives is of no use, and after `outgoing` nothing is sent
        self.given_at = 0.0  # when the message of the latest piece was given
        self.tensor_left: int | None = None  # bytes of its tensor to come; None: it has no tensor
        self.taken_bytes = 0  # of the latest message that was taken in
        self._delivery = delivery
        self._calls = calls
        self._must_greet = calls
        self._pieces: Iterator[bytes] = iter(())
        self._next = 0  # the number of the next message to be sent
        self._coming: Assembly | None = None

    @property
    def unsent(self) -> int:
        """How many messages have not been begun on this connection."""
        return self._delivery.given - self._next if self.greeted else self._delivery.unconfirmed

    @property
    def is_mid_message(self) -> bool:
        """Whether more of a message is due from the peer."""
        return self._coming is not None

    def outgoing(self) -> bytes | None:
        """The next piece to send; None where there is none for now."""
        piece = next(self._pieces, None)
        if piece is not None:
            if self.tensor_left is not None:
                self.tensor_left -= len(piece)
            return piece
        delivery = self._delivery
        if self._must_greet:
            self._must_greet = False
            message, number = _greeting(delivery), 0
        elif self.greeted and self._next < delivery.given:
            kept, number = delivery.begin(self._next), self._next
            message, self.given_at = kept.message, kept.given_at
            self._next += 1
        else:
            return None
        self.tensor_left = None if message.tensor is None else message.tensor.nbytes
        self._pieces = encode(message, number, delivery.received, self.piece_bytes)
        return next(self._pieces)

    def heartbeat(self) -> bytes:
        """A sign of life, for where `outgoing` gives nothing; it says what we have received."""
        self.tensor_left = None
        return next(encode(Message(Kind.HEARTBEAT), self._next, self._delivery.received))

    def take(self, piece: bytes) -> Message | None:
        """What a piece that arrived completes, if anything.

        Raises ProtocolError for what the peer may not send, PeerRestarted for a greeting of
        another process than before. Both are for good.
        """
        if self.is_over:
            return None
        if self._coming is not None:
            self._coming.add(piece)
        else:
            self._begin(piece)
        if self._coming is None or self._coming.missing:
            return None
        message, self.taken_bytes = self._coming.message(), self._coming.num_bytes
        self._coming = None
        if message.kind is Kind.GREETING:
            self._accept(message.body or {})
            return None
        self._delivery.received += 1
        return message

    def _begin(self, piece: bytes) -> None:
        delivery = self._delivery
        header = decode_header(piece, delivery.received if self.greeted else 0, delivery.specs)
        if (header.kind is Kind.GREETING) == self.greeted:
            due = "messages" if self.greeted else "a greeting"
            raise ProtocolError(f"expected {due}, got {header.kind.name}")
        if self.greeted:
            delivery.confirm(header.received)
        if header.kind is not Kind.HEARTBEAT:
            self._coming = Assembly(header)

    def _accept(self, body: Mapping[str, object]) -> None:
        delivery = self._delivery
        token, knows, received = (body.get(key) for key in ("token", "knows", "received"))
        if not _is_token(token) or not (knows is None or _is_token(knows)):
            raise ProtocolError("GREETING: expected tokens of 32 hexadecimal digits")
        if not isinstance(received, int) or isinstance(received, bool):
            raise ProtocolError("GREETING: expected a number of messages")
        if delivery.their_token not in (None, token):
            raise PeerRestarted(f"{delivery.peer} began anew")
        self._must_greet = not self._calls
        if knows not in (None, delivery.token):
            self.is_over = True  # it takes us for a process that is gone; our greeting tells it
            return
        delivery.confirm(received)
        delivery.their_token = str(token)
        self._next = received
        self.greeted = True


def _greeting(delivery: Delivery) -> Message:
    body = {"token": delivery.token, "knows": delivery.their_token, "received": delivery.received}
    return Message(Kind.GREETING, body=body)


def _is_token(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}", value) is not None
