"""One connection of a link: connects a carrier's two threads to the link that owns it.

The carrier iterates over `outgoing_pieces()` on its sending thread and passes what it receives to
`receive_pieces()` on its receiving thread. Behind a gateway the pieces are encrypted here
(`inner_tls`). The link (`stream`) decides which messages a connection carries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Protocol

from celu.errors import CeluError, PeerLost, ProtocolError
from celu.text import printable
from celu.transport.delivery import ConnectionProtocol
from celu.transport.emulation import LinkEmulator
from celu.transport.inner_tls import InnerTls
from celu.transport.message import TrafficBothWays
from celu.transport.reconnect import is_silent
from celu.transport.waits import Signal

# Open connections of one peer: the current one, its successor, and a few that are closing.
_MAX_CONNECTIONS = 4


def reason_of(error: Exception) -> str:
    """The text of an error that a carrier raised, or its type if it has none."""
    return printable(str(error)) or type(error).__name__


class ConnectionOwner(Protocol):
    """The link that a connection belongs to. The methods are called on the carrier's threads."""

    peer: str
    traffic: TrafficBothWays
    heartbeat_s: float
    emulator: LinkEmulator | None

    def next_piece(self, connection: Connection) -> bytes | None:
        """Wait for the next piece to send; None when the connection has nothing more to send."""
        ...

    def on_piece(self, connection: Connection, piece: bytes) -> None:
        """Process a received piece; blocks while the compute thread is behind.

        Raises what `ConnectionProtocol.receive_piece` raises.
        """
        ...

    def on_receive_ended(
        self, connection: Connection, problem: CeluError, *, by_peer: bool
    ) -> CeluError:
        """Record that a connection ended; returns the reason that its carrier may report.

        `by_peer`: the peer violated the protocol, which ends the session if this is the current
        connection.
        """
        ...

    def on_send_ended(self, connection: Connection) -> None:
        """Record that a connection will send nothing more."""
        ...


class Connections:
    """The connections of a link; `current` delivers messages. The link's lock guards it."""

    def __init__(self, peer: str) -> None:
        self.current: Connection | None = None
        self.all: list[Connection] = []
        self._peer = peer

    def add(self, connection: Connection) -> None:
        """Add a connection; raises PeerLost if there are too many that have not ended."""
        for ended in [other for other in self.all if other.receive_ended]:
            self.all.remove(ended)
            ended.to_send.notify()  # its sending thread ends as well
        if len(self.all) >= _MAX_CONNECTIONS:
            raise PeerLost(f"{self._peer} is already connected; try again later")
        self.all.append(connection)

    def make_current(self, connection: Connection) -> None:
        """Replace the current connection: what it still receives is ignored."""
        if self.current is not None and self.current is not connection:
            self.current.is_replaced = True
            self.current.to_send.notify()
        self.current = connection


class Connection:
    """This party's end of one connection, for its carrier.

    Before it starts, the carrier sets `explain_error` (converts its own exceptions), `inner_tls`,
    `piece_bytes` and `cancel` (ends the connection at once, from any thread).
    """

    def __init__(
        self, link: ConnectionOwner, protocol: ConnectionProtocol, to_send: Signal
    ) -> None:
        self.protocol = protocol
        self.to_send = to_send  # its sending thread waits for a piece
        self.peer = link.peer
        self.explain_error: Callable[[Exception], CeluError] | None = None
        self.inner_tls: InnerTls | None = None
        self.cancel: Callable[[], None] = lambda: None
        self.on_greeted: Callable[[], None] = lambda: None
        self.is_replaced = False  # ignore what it receives: the next connection receives it again
        self.receive_ended = False
        self.send_ended = False
        self.is_broken = False  # nothing more can be sent on it
        self.problem: CeluError | None = None  # why it ended or was rejected
        self.ack_due_at = float("inf")  # when to acknowledge at the latest
        self.sends_at = float("inf")  # until when its sending thread waits, unless it is woken
        self.message_started_at = time.monotonic()  # arrival of its first piece
        self._link = link
        self._waiting_since: float | None = None  # for the next piece from the peer

    @property
    def piece_bytes(self) -> int:
        """Size of the pieces that messages are split into."""
        return self.protocol.piece_bytes

    @piece_bytes.setter
    def piece_bytes(self, size: int) -> None:
        self.protocol.piece_bytes = size

    def is_silent(self, now: float) -> bool:
        """Whether nothing arrived for two heartbeats, although we were reading."""
        since = self._waiting_since
        return since is not None and is_silent(since, now, self._link.heartbeat_s)

    def abort(self, problem: CeluError) -> None:
        """Cancel the connection, for this reason unless there is one already."""
        self.problem = self.problem or problem
        if self.inner_tls is not None:
            self.inner_tls.fail(problem)
        self.cancel()

    def abort_unless_proven(self) -> None:
        """Cancel the connection if it has an inner TLS whose handshake has not succeeded."""
        if self.inner_tls is not None and not self.inner_tls.is_proven():
            self.abort(PeerLost(f"{self.peer} did not complete the TLS handshake in time"))

    def mark_ended(self, problem: CeluError) -> None:
        """Record that the connection has ended or could not be opened."""
        self._link.on_receive_ended(self, problem, by_peer=False)

    def outgoing_pieces(self) -> Generator[bytes, None, None]:
        """Yield the pieces to send, on the carrier's sending thread; ends with the connection."""
        link, inner_tls, started_at = self._link, self.inner_tls, time.monotonic()
        emulator = link.emulator
        first_byte_at: float | None = None  # of the message that is being sent
        try:
            if inner_tls is not None and not (yield from inner_tls.handshake_flights()):
                self.problem = self.problem or inner_tls.problem  # for the carrier to report
                return
            while (piece := link.next_piece(self)) is not None:
                piece_at = time.monotonic()
                if emulator is not None:
                    emulator.pace(len(piece), max(self.protocol.enqueued_at, started_at))
                    piece_at = emulator.free_at - emulator.transfer_s
                yield piece if inner_tls is None else inner_tls.encrypt(piece)
                first_byte_at = piece_at if first_byte_at is None else first_byte_at
                if self.protocol.bytes_left == 0:
                    last_byte_at = time.monotonic() if emulator is None else emulator.free_at
                    link.traffic.sent.spans.append((first_byte_at, last_byte_at))
                if not self.protocol.bytes_left:
                    first_byte_at = None
        except PeerLost:  # the received bytes broke the inner TLS; the receiving thread reports it
            return
        finally:  # also when the carrier drops the generator, so that `close` does not wait
            link.on_send_ended(self)

    def receive_pieces(self, pieces: Iterator[bytes]) -> None:
        """Process what arrives, on the carrier's receiving thread; returns when it ends."""
        if self.inner_tls is not None:
            pieces = self.inner_tls.decrypted(pieces)
        by_peer = False
        try:
            while True:
                self._waiting_since = time.monotonic()
                piece = next(pieces, None)
                self._waiting_since = None
                if piece is None:
                    raise PeerLost(f"{self.peer} closed the link")
                if not self.protocol.is_mid_message:
                    self.message_started_at = time.monotonic()
                by_peer = True
                self._link.on_piece(self, piece)
                by_peer = False
        except Exception as error:  # converts any error of the carrier to a CeluError
            self._waiting_since = None
            problem = self._link.on_receive_ended(self, self._explain(error), by_peer=by_peer)
            if self.inner_tls is not None:
                self.inner_tls.fail(problem)

    def _explain(self, error: Exception) -> CeluError:
        if isinstance(error, ProtocolError):
            return type(error)(f"from {self.peer}: {error}")
        if isinstance(error, CeluError):
            return error
        explained = self.explain_error(error) if self.explain_error else None
        return explained or PeerLost(f"the link to {self.peer} broke: {reason_of(error)}")
