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

from celu.errors import CeluError, PeerLost, PeerRestarted
from celu.events import Callback, ignore
from celu.transport.connection import Connection, Connections
from celu.transport.delivery import ConnectionProtocol, Delivery
from celu.transport.emulation import LinkEmulator
from celu.transport.message import Kind, Message, TensorSpec, TrafficBothWays, peer_failure
from celu.transport.uptime import Uptime
from celu.transport.waits import Signal, Waits
from celu.transport.wire import as_sendable, check_received

Handler = Callable[[Message], None]

# Messages that may wait on either side of the compute thread. The limit bounds memory and, through
# the carrier's flow control, slows down a peer that sends faster than this party computes.
QUEUED_MESSAGES = 8
# How long `close` waits for acknowledgements, and then for the peer to close as well.
CLOSE_S = 5.0
# How long an acknowledgement may wait; usually the header of the next message carries it earlier.
ACK_DELAY_S = 0.05


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
        self._on_event = on_event
        self._waits = Waits()  # their lock guards everything below
        self._delivery = Delivery(peer)
        self._incoming: deque[Message] = deque()
        self._handlers: Mapping[Kind, Handler] = {}
        self._on_end: Callable[[CeluError], None] | None = None
        self._end: CeluError | None = None  # raised once `_incoming` is empty
        self._closing = self._closed = False
        self._connections = Connections(peer)
        self._uptime = Uptime(peer, deadline_s, outage_s)

    # --- The `Link` interface, for the compute thread.

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        """See `Link`."""
        self._delivery.specs = specs

    def handle(self, handlers: Mapping[Kind, Handler], on_end: Callable[[CeluError], None]) -> None:
        """Call a handler for messages of these kinds, and do not queue them for `receive`.

        Handlers run on the receiving thread, one at a time: the next message waits for them. An
        error that one raises ends the link, like a violation of the protocol. `on_end` is called
        once, with the link's lock held, when the link is over.
        """
        with self._waits.lock:
            queued, self._incoming = self._incoming, deque()
            for message in queued:  # they arrived before this call
                handlers.get(message.kind, self._incoming.append)(message)
            self._handlers, self._on_end = handlers, on_end
            self._wake_all()
            self._report_end()

    async def send(self, message: Message) -> None:
        """See `Link`. A tensor on a GPU is copied to main memory here."""
        message = as_sendable(message)
        with self._waits.lock:
            self._wait(self._waits.room_to_send, self._has_room, "accepted")
            self._enqueue(message)

    def post(self, message: Message) -> None:
        """Queue a message like `send`, but never wait; raises PeerLost if the queue is full."""
        message = as_sendable(message)
        with self._waits.lock:
            if self.is_over or not self._has_room():
                raise self._end or PeerLost(f"{self.peer} accepts no more messages now")
            self._enqueue(message)

    async def receive(self) -> Message:
        """See `Link`."""
        with self._waits.lock:
            self._wait(self._waits.to_receive, lambda: bool(self._incoming), "sent")
            message = self._incoming.popleft()
            self._waits.room_to_receive.notify_all()
        check_received(message)
        return message

    def close(self) -> None:
        """See `Link`."""
        with self._waits.lock:
            if self._closing:
                return
            self._closing = True
            self._wake_all()
            self._waits.change.wait_for(self._is_flushed, CLOSE_S)
            self._closed = True  # no new connections from here on
            self._report_end()
            self._wake_all()
            connections = list(self._connections.all)
            self._waits.change.wait_for(
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
        return self._uptime.is_down and not self.is_over

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
        protocol = ConnectionProtocol(self._delivery, dials=dials)
        return Connection(self, protocol, Signal(self._waits.lock))

    def add_connection(self, connection: Connection, *, dials: bool) -> None:
        """Add a connection to the peer; raises PeerLost if there are too many or it is closed."""
        with self._waits.lock:
            if self.is_over or (self._closing and not dials):
                raise self._closing_error()
            self._connections.add(connection)
            if dials:  # the dialing side has dropped its previous connection
                self._connections.make_current(connection)

    def wait_until_greeted(self, connection: Connection, seconds: float) -> None:
        """Wait for the peer's greeting; raises the connection's error, PeerLost at the deadline."""
        with self._waits.lock:
            self._waits.change.wait_for(
                lambda: connection.protocol.greeted or connection.receive_ended or self.is_over,
                seconds,
            )
            if connection.problem is not None:
                raise connection.problem
            if not connection.protocol.greeted:
                raise PeerLost(f"{self.peer} did not answer within {seconds:g} s")

    def sleep(self, seconds: float, *, until_down: bool = False) -> None:
        """Sleep, but wake up when the link is over or, with `until_down`, down."""
        with self._waits.lock:
            self._waits.change.wait_for(
                lambda: self.is_over or (until_down and self.is_down), max(0.0, seconds)
            )

    def drop_silent_connections(self) -> None:
        """Abort connections on which nothing was received for two heartbeats."""
        now = time.monotonic()
        with self._waits.lock:
            silent = [c for c in self._connections.all if c.is_silent(now)]
        for connection in silent:
            connection.abort(
                PeerLost(f"nothing received from {self.peer} for {2 * self.heartbeat_s:g} s")
            )

    def fail(self, problem: CeluError) -> None:
        """End the link: after the messages received so far, `receive` raises this."""
        with self._waits.lock:
            self._finish(problem)

    # --- For its connections, on the carriers' threads: see `ConnectionOwner`.

    def next_piece(self, connection: Connection) -> bytes | None:
        """See `ConnectionOwner`."""
        protocol = connection.protocol
        with self._waits.lock:
            heartbeat_at = time.monotonic() + self.heartbeat_s
            may_nap = True
            while not connection.is_broken:
                if self._connections.current is connection or protocol.is_over:
                    piece = protocol.next_piece()
                    if piece is not None:
                        self._waits.room_to_send.notify_all()
                        return piece
                    if protocol.is_over:
                        break
                    now = time.monotonic()
                    if protocol.greeted and now >= min(heartbeat_at, connection.ack_due_at):
                        connection.ack_due_at = float("inf")
                        if now >= heartbeat_at or protocol.owes_acknowledgement:
                            return protocol.heartbeat()
                    if self._closed or (self._closing and self._is_flushed()):
                        break
                elif connection.receive_ended:  # it never became the current connection
                    break
                now = time.monotonic()
                due_at = min(heartbeat_at, connection.ack_due_at)
                if may_nap:  # so that what arrives meanwhile need not wake this thread
                    may_nap, due_at = False, min(due_at, now + ACK_DELAY_S)
                connection.sends_at = due_at
                connection.to_send.wait(max(0.0, due_at - now))
            return None

    def on_piece(self, connection: Connection, piece: bytes) -> None:
        """See `ConnectionOwner`.

        A greeted connection replaces the current one. Our greeting then says what we have received
        and the peer resends the rest, so nothing more may be accepted from the old connection.
        """
        with self._waits.lock:
            if connection.is_replaced:
                return
            greeted = connection.protocol.greeted
            message = connection.protocol.receive_piece(piece)
            if not greeted or self._closing:  # the greeting, or an acknowledgement to wait for
                if connection.protocol.greeted and not greeted:
                    self._switch_to(connection)
                self._wake_all()
            self._waits.room_to_send.notify_all()
            if message is None or self._end is not None:
                return
            self._count(connection, message)
            if message.kind is Kind.FAILURE:
                self._acknowledge_soon(connection, message.kind)
                self._finish(peer_failure(self.peer, message))
                return
            handler = self._handlers.get(message.kind)
            if handler is None:
                self._acknowledge_soon(connection, message.kind)
                self._waits.room_to_receive.wait_for(
                    lambda: len(self._incoming) < QUEUED_MESSAGES or self._closing
                )
                self._incoming.append(message)
                self._waits.to_receive.notify_all()
        if handler is not None:
            check_received(message)
            handler(message)
            if connection.protocol.owes_acknowledgement:  # else what the handler sent has it
                with self._waits.lock:
                    self._acknowledge_soon(connection, message.kind)

    def on_receive_ended(
        self, connection: Connection, problem: CeluError, *, by_peer: bool
    ) -> CeluError:
        """See `ConnectionOwner`."""
        with self._waits.lock:
            current = self._connections.current
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
                self._uptime.note_reason(str(connection.problem))
            if is_current and not self.is_over:
                event = self._uptime.go_down()
                if event is not None and not self._closing:
                    self._on_event(event)
            self._wake_all()
            return connection.problem

    def on_send_ended(self, connection: Connection) -> None:
        """See `ConnectionOwner`."""
        with self._waits.lock:
            connection.send_ended = True
            self._wake_all()

    # --- Private; all called with the lock held.

    def _count(self, connection: Connection, message: Message) -> None:
        """Count a received message."""
        now, started_at = time.monotonic(), connection.message_started_at
        size = connection.protocol.received_bytes
        self.traffic.received.count(message.kind, size, now - started_at)
        if message.tensor is not None:
            self.traffic.received.spans.append((started_at, now))

    def _acknowledge_soon(self, connection: Connection, kind: Kind) -> None:
        """Have a received message acknowledged within ACK_DELAY_S, the last of a session now."""
        now = time.monotonic()
        due_at = now if kind in (Kind.GOODBYE, Kind.FAILURE) else now + ACK_DELAY_S
        if due_at < connection.ack_due_at:
            connection.ack_due_at = due_at
            if due_at < connection.sends_at:
                connection.to_send.notify()

    def _switch_to(self, connection: Connection) -> None:
        """Make a connection that was greeted the current one."""
        old = self._connections.current
        self._connections.make_current(connection)
        if old is not None and old is not connection and not old.receive_ended:
            old.abort(PeerLost("another connection took over"))
            # The old connection may hold a message that waits for room; this message comes first.
            self._waits.change.wait_for(lambda: old.receive_ended or self._closing)
        event = self._uptime.go_up()
        if event is not None:
            self._on_event(event)
        connection.on_greeted()

    def _wake_all(self) -> None:
        """Wake all threads: a connection or the link has changed."""
        self._waits.notify_all()
        for connection in self._connections.all:
            connection.to_send.notify()

    def _finish(self, problem: CeluError) -> None:
        self._end = self._end or problem
        self._report_end()
        self._wake_all()

    def _report_end(self) -> None:
        if self.is_over and self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(self._closing_error())

    def _closing_error(self) -> CeluError:
        return self._end or PeerLost(f"the link to {self.peer} is closed")

    def _enqueue(self, message: Message) -> None:
        num_bytes = self._delivery.enqueue(message, time.monotonic())
        self.traffic.sent.count(message.kind, num_bytes)
        if self._connections.current is not None:
            self._connections.current.to_send.notify()

    def _has_room(self) -> bool:
        connection = self._connections.current
        unsent = self._delivery.unacknowledged if connection is None else connection.protocol.unsent
        return unsent < QUEUED_MESSAGES and self._delivery.has_room()

    def _is_flushed(self) -> bool:
        return self._delivery.unacknowledged == 0 or self._end is not None

    def _wait(self, condition: threading.Condition, ready: Callable[[], bool], did: str) -> None:
        """Wait until ready; raises the error that ended the link, PeerLost at the deadline."""
        began = time.monotonic()
        while not ready():
            if self.is_over:
                raise self._closing_error()
            until = self._uptime.give_up_at(began)
            if time.monotonic() >= until:
                self._finish(self._uptime.timeout_error(did))
            condition.wait(max(0.0, until - time.monotonic()))
