"""One connection of a link in virtual time: TLS and a `ConnectionProtocol` between a wire and the link.

Some links are sealed, as through a gateway: there the TLS is ours (`InnerTlsEngine`). Others are direct,
and a carrier makes its own TLS below us (`CarriersTls`).
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from celu.errors import CeluError, PeerLost
from celu.transport.delivery import ConnectionProtocol, Delivery
from celu.transport.inner_tls_engine import InnerTlsEngine
from celu.transport.message import Message
from celu.transport.reconnect import is_silent
from celu.transport.stream import CONFIRM_S
from chaos.keys import Keys, keys
from chaos.wire import End, Network
from chaos.world import Process

HEARTBEAT_S = 2.0
_MARK_BYTES = 8


class Watcher(Protocol):
    """Told of every message as it is given and as it is delivered, by the sender's token."""

    def given(self, token: str, message: Message) -> None:
        """The program sent it."""
        ...

    def delivered(self, token: str, message: Message) -> None:
        """The peer's program gets it."""
        ...


@dataclass(frozen=True)
class Surroundings:
    """What a link is to its process: where it lives, whom to tell, and how to be woken."""

    process: Process
    network: Network
    watcher: Watcher
    wake: Callable[[], None]  # the program may go on
    piece_bytes: int  # what messages are cut into
    sealed: bool  # whether the TLS is ours


class Holder(Protocol):
    """The link that a connection belongs to."""

    peer: str
    around: Surroundings
    delivery: Delivery

    def arrived(self, connection: Connection, piece: bytes) -> None:
        """Take in a piece."""
        ...

    def over(self, connection: Connection, reason: str) -> None:
        """The connection has ended."""
        ...


class CarriersTls:
    """What shows above a carrier of its TLS: a record that is not the next one sent is the last."""

    is_open = True  # a connection is there for us when its handshake is done

    def __init__(self) -> None:
        self._sent = self._taken = 0

    def encrypt(self, piece: bytes) -> bytes:
        """A piece as the record that stands for it."""
        self._sent += 1
        return _mark(self._sent, piece) + piece

    def take(self, record: bytes) -> bytes:
        """The piece of a record; raises PeerLost for any other record than the one that is due."""
        mark, piece = record[:_MARK_BYTES], record[_MARK_BYTES:]
        self._taken += 1
        if mark != _mark(self._taken, piece):
            raise PeerLost("the carrier's TLS does not accept what arrived")
        return piece


class Connection:
    """One connection of a link."""

    def __init__(self, link: Holder, end: End, *, calls: bool) -> None:
        process = link.around.process
        self.connection = ConnectionProtocol(
            link.delivery, calls=calls, piece_bytes=link.around.piece_bytes
        )
        self.heard_at = process.world.now
        self.is_over = False
        self._link = link
        self._process = process
        self._end = end
        self._owes = False  # the peer has not been told what was received
        # None before the one that is called has answered.
        self._tls: InnerTlsEngine | CarriersTls | None = None
        end.on_record = self._record
        end.on_close = lambda: self.end("closed by the other side")
        process.after(HEARTBEAT_S, self._beat)
        if calls:
            end.on_reached = self._reached
        elif link.around.sealed:
            own = keys()[process.name, link.peer]
            self._tls = self._sealing(own, own.answering, lambda: None)
        else:
            self._tls = CarriersTls()

    def pump(self) -> None:
        """Send what is to be sent."""
        is_open = self._tls is not None and self._tls.is_open and not self.is_over
        while is_open and (piece := self.connection.outgoing()) is not None:
            self._say(piece)

    def confirm(self) -> None:
        """Say what was received, unless something that was sent has said so."""
        if self.connection.greeted and not self.is_over:
            self._say(self.connection.heartbeat())

    def confirm_soon(self, *, urgent: bool) -> None:
        """Say what was received, with the next message or without."""
        if urgent:
            self.confirm()
        elif not self._owes:
            self._owes = True
            self._process.after(CONFIRM_S, self._confirm_if_due)

    def end(self, reason: str) -> None:
        """End it, unless it has ended."""
        if not self.is_over:
            self.is_over = True
            self._end.close()
            self._link.over(self, reason)

    def _reached(self) -> None:
        """The one that was called has answered."""
        if self._link.around.sealed:
            own = keys()[self._process.name, self._link.peer]
            self._tls = self._sealing(own, own.calling, None)
        else:
            self._tls = CarriersTls()
            self.pump()

    def _sealing(
        self, own: Keys, context: ssl.SSLContext, admit: Callable[[], None] | None
    ) -> InnerTlsEngine:
        return InnerTlsEngine(context, self._link.peer, own.authority, self._end.send, admit)

    def _record(self, record: bytes) -> None:
        assert self._tls is not None  # who was called says nothing before it is spoken to
        self.heard_at = self._process.world.now
        try:
            piece = self._tls.take(record)
        except CeluError as error:
            self.end(f"{type(error).__name__} {error}")
            return
        if piece is None:
            self.pump()  # the caller's greeting, once TLS is there
        else:
            unconfirmed = self._link.delivery.unconfirmed
            self._link.arrived(self, piece)
            if self._link.delivery.unconfirmed < unconfirmed:
                self._link.around.wake()  # there may be room now, or nothing more to say

    def _say(self, piece: bytes) -> None:
        assert self._tls is not None
        self._owes = False
        self._end.send(self._tls.encrypt(piece))

    def _confirm_if_due(self) -> None:
        if self._owes:
            self.confirm()

    def _beat(self) -> None:
        now = self._process.world.now
        if self.is_over:
            return
        if is_silent(self.heard_at, now, HEARTBEAT_S):
            self.end(f"nothing was heard for {2 * HEARTBEAT_S:g} s")
            return
        self.confirm()
        self._process.after(HEARTBEAT_S, self._beat)


def _mark(number: int, piece: bytes) -> bytes:
    """By which a record is known: no other bytes in another place have it."""
    salt = number.to_bytes(8, "little")
    return hashlib.blake2b(piece, digest_size=_MARK_BYTES, salt=salt).digest()
