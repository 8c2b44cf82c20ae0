"""One connection of a link in virtual time: TLS and a `Leg` between a wire and the link."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from celu.chaos.keys import Keys, keys
from celu.chaos.wire import End, Network
from celu.chaos.world import Process
from celu.errors import CeluError
from celu.transport.delivery import Delivery, Leg
from celu.transport.keeping import is_silent
from celu.transport.message import Message
from celu.transport.sealing import Sealing
from celu.transport.stream import CONFIRM_S

HEARTBEAT_S = 2.0


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


class Connection:
    """One connection of a link."""

    def __init__(self, link: Holder, end: End, *, calls: bool) -> None:
        process = link.around.process
        self.leg = Leg(link.delivery, calls=calls, piece_bytes=link.around.piece_bytes)
        self.heard_at = process.world.now
        self.is_over = False
        self._link = link
        self._process = process
        self._end = end
        self._owes = False  # the peer has not been told what was received
        self._sealing: Sealing | None = None  # none before the one that is called has answered
        end.on_record = self._record
        end.on_close = lambda: self.end("closed by the other side")
        process.after(HEARTBEAT_S, self._beat)
        own = keys()[process.name, link.peer]
        if calls:
            end.on_reached = lambda: self._shake(own, own.calling, None)
        else:
            self._shake(own, own.answering, lambda: None)

    def pump(self) -> None:
        """Send what is to be sent."""
        is_open = self._sealing is not None and self._sealing.is_open and not self.is_over
        while is_open and (piece := self.leg.outgoing()) is not None:
            self._say(piece)

    def confirm(self) -> None:
        """Say what was received, unless something that was sent has said so."""
        if self.leg.greeted and not self.is_over:
            self._say(self.leg.pulse())

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

    def _shake(self, own: Keys, context: ssl.SSLContext, admit: Callable[[], None] | None) -> None:
        peer, send = self._link.peer, self._end.send
        self._sealing = Sealing(context, peer, own.authority, send, admit)

    def _record(self, record: bytes) -> None:
        assert self._sealing is not None  # who was called says nothing before it is spoken to
        self.heard_at = self._process.world.now
        try:
            piece = self._sealing.take(record)
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
        assert self._sealing is not None
        self._owes = False
        self._end.send(self._sealing.seal(piece))

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
