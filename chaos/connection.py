"""One connection of a simulated link: TLS and a `ConnectionProtocol` between a socket and the link.

Some links use inner TLS, as through a gateway (`InnerTlsEngine`). Others are direct: there the
carrier has its own TLS below us, of which only the effect is simulated (`CarrierTls`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from celu.errors import CeluError, PeerLost
from celu.transport.delivery import ConnectionProtocol, Delivery
from celu.transport.inner_tls_engine import InnerTlsEngine
from celu.transport.message import Message
from celu.transport.reconnect import is_silent
from celu.transport.stream import ACK_DELAY_S
from chaos.network import Network, Socket
from chaos.simulator import Process
from chaos.tls_contexts import tls_contexts

HEARTBEAT_S = 2.0
_DIGEST_BYTES = 8


class MessageObserver(Protocol):
    """Called with every message when it is sent and when it is delivered, by sender's token."""

    def on_sent(self, token: str, message: Message) -> None:
        """The sender has enqueued it."""
        ...

    def on_delivered(self, token: str, message: Message) -> None:
        """The receiver has received all of it."""
        ...


@dataclass(frozen=True)
class LinkContext:
    """What a link needs from its process."""

    process: Process
    network: Network
    observer: MessageObserver
    wake: Callable[[], None]  # schedules the party's coroutine
    piece_bytes: int  # size of the pieces that messages are split into
    inner_tls: bool


class ConnectionOwner(Protocol):
    """The link that a connection belongs to."""

    peer: str
    context: LinkContext
    delivery: Delivery

    def on_piece(self, connection: Connection, piece: bytes) -> None:
        """Process a received piece."""
        ...

    def on_ended(self, connection: Connection, reason: str) -> None:
        """Record that the connection has ended."""
        ...


class CarrierTls:
    """The effect of a carrier's own TLS: any record but the next one sent ends the connection."""

    is_open = True  # the carrier's handshake is done before we see the connection

    def __init__(self, connection: int) -> None:
        """`connection` stands for the keys, which every connection has of its own."""
        self._connection = connection
        self._num_sent = self._num_received = 0

    def encrypt(self, piece: bytes) -> bytes:
        """The record of a piece."""
        self._num_sent += 1
        return self._digest(self._num_sent, piece) + piece

    def receive(self, record: bytes) -> bytes:
        """The piece of a record; raises PeerLost for any record but the next one."""
        digest, piece = record[:_DIGEST_BYTES], record[_DIGEST_BYTES:]
        self._num_received += 1
        if digest != self._digest(self._num_received, piece):
            raise PeerLost("the carrier's TLS rejects the record")
        return piece

    def _digest(self, number: int, piece: bytes) -> bytes:
        """Identifies a record by its connection, its position and its content."""
        salt = self._connection.to_bytes(8, "little") + number.to_bytes(8, "little")
        return hashlib.blake2b(piece, digest_size=_DIGEST_BYTES, salt=salt).digest()


class Connection:
    """One connection of a link."""

    def __init__(self, link: ConnectionOwner, socket: Socket, *, dials: bool) -> None:
        process = link.context.process
        self.protocol = ConnectionProtocol(
            link.delivery, dials=dials, piece_bytes=link.context.piece_bytes
        )
        self.last_received_at = process.simulator.now
        self.is_over = False
        self._link = link
        self._process = process
        self._socket = socket
        self._ack_pending = False
        self._tls: InnerTlsEngine | CarrierTls | None = None  # None: not connected yet
        socket.on_record = self._on_record
        socket.on_close = lambda: self.end("closed by the other side")
        process.after(HEARTBEAT_S, self._heartbeat)
        if dials:
            socket.on_connected = self._on_connected
        elif link.context.inner_tls:
            self._tls = self._new_inner_tls(is_server=True)
        else:
            self._tls = CarrierTls(socket.connection)

    def flush(self) -> None:
        """Send everything that can be sent."""
        is_open = self._tls is not None and self._tls.is_open and not self.is_over
        while is_open and (piece := self.protocol.next_piece()) is not None:
            self._send(piece)

    def acknowledge(self) -> None:
        """Send a heartbeat, which acknowledges what was received."""
        if self.protocol.greeted and not self.is_over:
            self._send(self.protocol.heartbeat())

    def acknowledge_soon(self, *, urgent: bool) -> None:
        """Acknowledge what was received, with the next message or after a short delay."""
        if urgent:
            self.acknowledge()
        elif not self._ack_pending:
            self._ack_pending = True
            self._process.after(ACK_DELAY_S, self._acknowledge_if_pending)

    def end(self, reason: str) -> None:
        """Close it, unless it has ended."""
        if not self.is_over:
            self.is_over = True
            self._socket.close()
            self._link.on_ended(self, reason)

    def _on_connected(self) -> None:
        if self._link.context.inner_tls:
            self._tls = self._new_inner_tls(is_server=False)
        else:
            self._tls = CarrierTls(self._socket.connection)
            self.flush()

    def _new_inner_tls(self, *, is_server: bool) -> InnerTlsEngine:
        contexts = tls_contexts()[self._process.name, self._link.peer]
        return InnerTlsEngine(
            contexts.server if is_server else contexts.client,
            self._link.peer,
            contexts.authority,
            self._socket.send,
            (lambda: None) if is_server else None,
        )

    def _on_record(self, record: bytes) -> None:
        assert self._tls is not None  # the server only sends after the client did
        self.last_received_at = self._process.simulator.now
        try:
            piece = self._tls.receive(record)
        except CeluError as error:
            self.end(f"{type(error).__name__} {error}")
            return
        if piece is None:
            self.flush()  # the client's greeting, once the handshake is done
        else:
            unacknowledged = self._link.delivery.unacknowledged
            self._link.on_piece(self, piece)
            if self._link.delivery.unacknowledged < unacknowledged:
                self._link.context.wake()  # there may be room now, or nothing left to send

    def _send(self, piece: bytes) -> None:
        assert self._tls is not None
        self._ack_pending = False
        self._socket.send(self._tls.encrypt(piece))

    def _acknowledge_if_pending(self) -> None:
        if self._ack_pending:
            self.acknowledge()

    def _heartbeat(self) -> None:
        now = self._process.simulator.now
        if self.is_over:
            return
        if is_silent(self.last_received_at, now, HEARTBEAT_S):
            self.end(f"nothing received for {2 * HEARTBEAT_S:g} s")
            return
        self.acknowledge()
        self._process.after(HEARTBEAT_S, self._heartbeat)
