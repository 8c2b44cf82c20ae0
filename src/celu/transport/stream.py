"""A `Link` over connections that break and are replaced, for any carrier that moves bytes in order.

A `StreamLink` lasts for a whole session. Its `Delivery` numbers, buffers and acknowledges the
messages; each `Connection` moves pieces on two threads of its carrier. The party's compute thread
only touches two bounded queues. Reconnecting is up to `connect`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from celu.errors import CeluError, PeerLost, PeerRestarted
from celu.events import Callback, LinkDown, LinkUp, ignore
from celu.transport.connection import Connection
from celu.transport.delivery import ConnectionProtocol, Delivery
from celu.transport.emulation import LinkEmulator
from celu.transport.message import Kind, Message, TensorSpec, TrafficBothWays, peer_failure
from celu.transport.wire import check_finite, check_sendable

# Messages that may wait on either side of the compute thread. The limit bounds memory and, through
# the carrier's flow control, slows down a peer that sends faster than this party computes.
QUEUED_MESSAGES = 8
# How long `close` waits for acknowledgements, and then for the peer to close as well.
CLOSE_S = 5.0
# How long an acknowledgement may wait; usually the header of the next message carries it earlier.
ACK_DELAY_S = 0.05
# Open connections of one peer: the current one, its successor, and a few that are closing.
_MAX_CONNECTIONS = 4


class StreamLink:
    """See `Link`. `on_event` is called when the link goes down and comes up, on any thread."""

    def __init__(
        self,
        peer: str,
        *,
        deadline_s: float,
        outage_s: float = 600.0,
        heartbeat_s: float = 10.0,
        emulator: LinkEmulator | None = None,
        on_event: Callback = ignore,
    ) -> None:
        self.peer = peer
        self.traffic = TrafficBothWays()
        self.heartbeat_s = heartbeat_s
        self.emulator = emulator
        self._deadline_s = deadline_s
        self._outage_s = outage_s
        self._on_event = on_event
        self._changed = threading.Condition()  # guards everything below
        self._delivery = Delivery(peer)
        self._incoming: deque[Message] = deque()
        self._end: CeluError | None = None  # raised once `_incoming` is empty
        self._closing = self._closed = False
        self._connections: list[Connection] = []
        self._current: Connection | None = None  # the connection that delivers messages
        self._up_since: float | None = None
        self._down_since: float | None = None  # None before the first connection, too
        self._down_reason = ""

    # --- The `Link` interface, for the compute thread.

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        """See `Link`."""
        self._delivery.specs = specs

    async def send(self, message: Message) -> None:
        """See `Link`. A tensor on a GPU is copied to main memory here."""
        if message.tensor is not None:
            message = replace(message, tensor=message.tensor.detach().to("cpu"))
        if message.total is not None:
            check_finite(message.total.cpu(), message.kind.name, message.round)
        check_sendable(message)
        with self._changed:
            self._wait(self._has_room, "accepted")
            num_bytes = self._delivery.enqueue(message, time.monotonic())
            self.traffic.sent.count(message.kind, num_bytes)
            self._changed.notify_all()

    async def receive(self) -> Message:
        """See `Link`."""
        with self._changed:
            self._wait(lambda: bool(self._incoming), "sent")
            message = self._incoming.popleft()
            self._changed.notify_all()
        if message.tensor is not None:
            check_finite(message.tensor, f"{message.kind.name} from {self.peer}", message.round)
        return message

    def close(self) -> None:
        """See `Link`."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(self._is_flushed, CLOSE_S)
            self._closed = True  # no new connections from here on
            self._changed.notify_all()
            connections = list(self._connections)
            self._changed.wait_for(
                lambda: all(
                    connection.receive_ended and (connection.send_ended or connection.is_broken)
                    for connection in connections
                ),
                CLOSE_S,
            )
        for connection in connections:
            connection.abort(PeerLost(f"the link to {self.peer} is closed"))

    # --- For `connect` and the carriers, which open connections.

    @property
    def is_down(self) -> bool:
        """Whether it was up before and needs a new connection."""
        return self._down_since is not None and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it is closed or has failed, so that it needs no connection."""
        return self._closed or self._end is not None

    def new_connection(self, *, dials: bool) -> Connection:
        """Make and add a connection; raises PeerLost if there are too many or it is closed."""
        connection = self.make_connection(dials=dials)
        self.add_connection(connection, dials=dials)
        return connection

    def make_connection(self, *, dials: bool) -> Connection:
        """Make a connection that occupies nothing until it is added: its peer may be a stranger."""
        return Connection(self, ConnectionProtocol(self._delivery, dials=dials))

    def add_connection(self, connection: Connection, *, dials: bool) -> None:
        """Add a connection to the peer; raises PeerLost if there are too many or it is closed."""
        with self._changed:
            if self.is_over or (self._closing and not dials):
                raise self._end or PeerLost(f"the link to {self.peer} is closed")
            self._connections = [
                connection for connection in self._connections if not connection.receive_ended
            ]
            if len(self._connections) >= _MAX_CONNECTIONS:
                raise PeerLost(f"{self.peer} is already connected; try again later")
            self._connections.append(connection)
            if dials:  # the dialing side has dropped its previous connection
                self._replace_current(connection)

    def wait_until_greeted(self, connection: Connection, seconds: float) -> None:
        """Wait for the peer's greeting; raises the connection's error, PeerLost at the deadline."""
        with self._changed:
            self._changed.wait_for(
                lambda: connection.protocol.greeted or connection.receive_ended or self.is_over,
                seconds,
            )
            if connection.problem is not None:
                raise connection.problem
            if not connection.protocol.greeted:
                raise PeerLost(f"{self.peer} did not answer within {seconds:g} s")

    def sleep(self, seconds: float, *, until_down: bool = False) -> None:
        """Sleep, but wake up when the link is over or, with `until_down`, down."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.is_over or (until_down and self.is_down), max(0.0, seconds)
            )

    def drop_silent_connections(self) -> None:
        """Abort connections on which nothing was received for two heartbeats."""
        now = time.monotonic()
        with self._changed:
            silent = [connection for connection in self._connections if connection.is_silent(now)]
        for connection in silent:
            connection.abort(
                PeerLost(f"nothing received from {self.peer} for {2 * self.heartbeat_s:g} s")
            )

    def fail(self, problem: CeluError) -> None:
        """End the link: after the messages received so far, `receive` raises this."""
        with self._changed:
            self._finish(problem)

    # --- For its connections, on the carriers' threads: see `ConnectionOwner`.

    def next_piece(self, connection: Connection) -> bytes | None:
        """See `ConnectionOwner`."""
        protocol = connection.protocol
        with self._changed:
            heartbeat_at = time.monotonic() + self.heartbeat_s
            while not connection.is_broken:
                if self._current is connection or protocol.is_over:
                    piece = protocol.next_piece()
                    if piece is not None:
                        self._changed.notify_all()  # there may be room for another message
                        return piece
                    if protocol.is_over:
                        break
                    due_at = min(heartbeat_at, connection.ack_due_at)
                    if protocol.greeted and time.monotonic() >= due_at:
                        connection.ack_due_at = float("inf")
                        return protocol.heartbeat()
                    if self._closed or (self._closing and self._is_flushed()):
                        break
                elif connection.receive_ended:  # it never became the current connection
                    break
                due_at = min(heartbeat_at, connection.ack_due_at)
                self._changed.wait(max(0.0, due_at - time.monotonic()))
            return None

    def on_piece(self, connection: Connection, piece: bytes) -> None:
        """See `ConnectionOwner`.

        A greeted connection replaces the current one. Our greeting then says what we have received
        and the peer resends the rest, so nothing more may be accepted from the old connection.
        """
        with self._changed:
            if connection.is_replaced:
                return
            greeted = connection.protocol.greeted
            message = connection.protocol.receive_piece(piece)
            if connection.protocol.greeted and not greeted:
                self._switch_to(connection)
            self._changed.notify_all()
            if message is None or self._end is not None:
                return
            now = time.monotonic()
            urgent = message.kind in (Kind.GOODBYE, Kind.FAILURE)
            connection.ack_due_at = min(connection.ack_due_at, now if urgent else now + ACK_DELAY_S)
            started_at = connection.message_started_at
            self.traffic.received.count(
                message.kind, connection.protocol.received_bytes, now - started_at
            )
            if message.tensor is not None:
                self.traffic.received.spans.append((started_at, now))
            if message.kind is Kind.FAILURE:
                self._finish(peer_failure(self.peer, message))
                return
            self._changed.wait_for(lambda: len(self._incoming) < QUEUED_MESSAGES or self._closing)
            self._incoming.append(message)
            self._changed.notify_all()

    def on_receive_ended(
        self, connection: Connection, problem: CeluError, *, by_peer: bool
    ) -> CeluError:
        """See `ConnectionOwner`."""
        with self._changed:
            current = self._current
            is_current = current is connection
            if (
                isinstance(problem, PeerRestarted)
                and current is not None
                and not is_current
                and not current.receive_ended
            ):
                problem = PeerLost(f"{self.peer} is already connected; try again later")
            elif by_peer and (is_current or isinstance(problem, PeerRestarted)):
                self._finish(problem)
            connection.receive_ended, connection.problem = True, connection.problem or problem
            connection.is_broken = not by_peer  # else we can still send the peer why we stop
            if is_current:
                self._down_reason = str(connection.problem)
            if is_current and self._down_since is None and not self.is_over:
                self._down_since = time.monotonic()
                if self._up_since is not None and not self._closing:
                    self._on_event(LinkDown(peer=self.peer, reason=self._down_reason))
            self._changed.notify_all()
            return connection.problem

    def on_send_ended(self, connection: Connection) -> None:
        """See `ConnectionOwner`."""
        with self._changed:
            connection.send_ended = True
            self._changed.notify_all()

    # --- Private; all called with the lock held.

    def _switch_to(self, connection: Connection) -> None:
        """Make a connection that was greeted the current one."""
        old = self._current
        self._replace_current(connection)
        if old is not None and old is not connection and not old.receive_ended:
            old.abort(PeerLost("another connection took over"))
            # The old connection may hold a message that waits for room; this message comes first.
            self._changed.wait_for(lambda: old.receive_ended or self._closing)
        now = time.monotonic()
        if self._down_since is not None and self._up_since is not None:
            seconds = round(now - self._down_since, 3)
            self._on_event(LinkUp(peer=self.peer, seconds=seconds))
        self._up_since, self._down_since = now, None
        connection.on_greeted()

    def _replace_current(self, connection: Connection) -> None:
        if self._current is not None and self._current is not connection:
            self._current.is_replaced = True
        self._current = connection

    def _finish(self, problem: CeluError) -> None:
        self._end = self._end or problem
        self._changed.notify_all()

    def _has_room(self) -> bool:
        connection = self._current
        unsent = self._delivery.unacknowledged if connection is None else connection.protocol.unsent
        return unsent < QUEUED_MESSAGES and self._delivery.has_room()

    def _is_flushed(self) -> bool:
        return self._delivery.unacknowledged == 0 or self._end is not None

    def _wait(self, ready: Callable[[], bool], did: str) -> None:
        """Wait until ready; raises the error that ended the link, PeerLost at the deadline."""
        began = time.monotonic()
        while not ready():
            if self._end is not None:
                raise self._end
            down = self._down_since is not None
            since = self._down_since if down else max(began, self._up_since or began)
            assert since is not None
            until = since + (self._outage_s if down else self._deadline_s)
            # Bounded even if connections come up and break all the time.
            until = min(until, began + self._deadline_s + self._outage_s)
            if time.monotonic() >= until:
                self._finish(self._timeout_error(did, down=down))
            self._changed.wait(max(0.0, until - time.monotonic()))

    def _timeout_error(self, did: str, *, down: bool) -> PeerLost:
        if not down:
            return PeerLost(
                f"{self.peer} {did} nothing for {self._deadline_s:g} s (deadline_s); "
                "is it still running?"
            )
        return PeerLost(
            f"the link to {self.peer} was down for {self._outage_s:g} s (outage_s): "
            f"{self._down_reason}. "
            "Start again at all parties; the run resumes from its last checkpoint"
        )
