"""A `Link` over connections that come and go, for any carrier that moves byte strings in order.

A `StreamLink` lasts for a whole conversation; what is said and heard is in its `Delivery`. Each
connection has a `Connection`: the carrier pulls outgoing pieces from `outgoing()` on a thread of its
own and hands what it receives to `pump()` on another. The party's compute thread only touches two
bounded queues. Where a gateway is in between, pieces are sealed on their way out and opened on
their way in (`sealed`). Who connects anew after a connection has ended is decided in `opening`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace

from celu.errors import CeluError, CertificateError, PeerLost, PeerRestarted, ProtocolError
from celu.events import Callback, LinkDown, LinkUp, ignore
from celu.transport.delivery import ConnectionProtocol, Delivery
from celu.transport.emulation import LinkEmulator
from celu.transport.inner_tls import InnerTls
from celu.transport.message import Kind, Message, TensorSpec, TrafficBothWays, failure_of
from celu.transport.reconnect import is_silent
from celu.transport.wire import check_finite, check_sendable

# Messages that may wait on either side of the compute thread: bounds memory, and through the
# carrier's flow control slows a peer that sends faster than this party computes.
QUEUED_MESSAGES = 8
# How long a closing link waits for what was sent to arrive and for the peer to close as well.
CLOSE_S = 5.0
# How long what was received may go unconfirmed; mostly the next message says it before.
CONFIRM_S = 0.05
# Connections of one peer at a time: one at work, one that replaces it, and a few on their way out.
_MAX_CONNECTIONS = 4


class StreamLink:
    """See `Link`. `notice` is told when the link goes down and comes up again, on any thread."""

    def __init__(
        self,
        peer: str,
        *,
        deadline_s: float,
        outage_s: float = 600.0,
        heartbeat_s: float = 10.0,
        line: LinkEmulator | None = None,
        notice: Callback = ignore,
    ) -> None:
        self.peer = peer
        self.traffic = TrafficBothWays()
        self.heartbeat_s = heartbeat_s
        self._deadline_s = deadline_s
        self._outage_s = outage_s
        self.line = line
        self._notice = notice
        self._changed = threading.Condition()  # guards all that follows
        self._delivery = Delivery(peer)
        self._incoming: deque[Message] = deque()
        self._end: CeluError | None = None  # why nothing more will be received, after these
        self._closing = self._closed = False
        self._connections: list[Connection] = []
        self._current: Connection | None = None  # the one that delivers
        self._up_since: float | None = None
        self._down_since: float | None = None  # None before the first connection, too
        self._why_down = ""

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        """See `Link`."""
        self._delivery.specs = specs

    async def send(self, message: Message) -> None:
        """See `Link`. A tensor on an accelerator is brought to main memory here."""
        if message.tensor is not None:
            message = replace(message, tensor=message.tensor.detach().to("cpu"))
        if message.total is not None:
            check_finite(message.total.cpu(), message.kind.name, message.round)
        check_sendable(message)
        with self._changed:
            self._wait(self._has_room, "took")
            num_bytes = self._delivery.give(message, time.monotonic())
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
            self._changed.wait_for(self._has_said_all, CLOSE_S)
            self._closed = True  # nobody connects anew from here on
            self._changed.notify_all()
            connections = list(self._connections)
            self._changed.wait_for(
                lambda: all(
                    connection.is_over and (connection.is_mute or connection.is_broken)
                    for connection in connections
                ),
                CLOSE_S,
            )
        for connection in connections:
            connection.cut(PeerLost(f"the link to {self.peer} is closed"))

    # --- For who connects: carriers and `opening`.

    def connection(self, *, calls: bool) -> Connection:
        """The end of a new connection; raises CertificateError where there are too many.

        Raises PeerLost where the link is over.
        """
        with self._changed:
            if self.is_over or (self._closing and not calls):
                raise self._end or PeerLost(f"the link to {self.peer} is closed")
            self._connections = [
                connection for connection in self._connections if not connection.is_over
            ]
            if len(self._connections) >= _MAX_CONNECTIONS:
                raise CertificateError(f"{self.peer} is connected already")
            connection = Connection(self, ConnectionProtocol(self._delivery, calls=calls))
            self._connections.append(connection)
            if calls:  # whoever calls has let go of the one before
                self._replace(connection)
            return connection

    def wait_up(self, connection: Connection, seconds: float) -> None:
        """Until a connection has been greeted; raises why it was not, PeerLost at the deadline."""
        with self._changed:
            self._changed.wait_for(
                lambda: connection.protocol.greeted or connection.is_over or self.is_over, seconds
            )
            if connection.problem is not None:
                raise connection.problem
            if not connection.protocol.greeted:
                raise PeerLost(f"{self.peer} did not answer within {seconds:g} s")

    @property
    def is_down(self) -> bool:
        """Whether it was up, and is to come up again."""
        return self._down_since is not None and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether no connection is wanted any more."""
        return self._closed or self._end is not None

    def pause(self, seconds: float, *, until_down: bool = False) -> None:
        """Wait so long, but no longer than the link is wanted, or is up."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.is_over or (until_down and self.is_down), max(0.0, seconds)
            )

    def drop_if_silent(self) -> None:
        """End a connection whose other side has not been heard of for two heartbeats."""
        now = time.monotonic()
        with self._changed:
            silent = [connection for connection in self._connections if connection.is_silent(now)]
        for connection in silent:
            connection.cut(
                PeerLost(f"nothing was heard of {self.peer} for {2 * self.heartbeat_s:g} s")
            )

    def give_up(self, problem: CeluError) -> None:
        """Nothing more will be received, and this is why."""
        with self._changed:
            self._finish(problem)

    # --- For connections, on the carriers' threads.

    def next_piece(self, connection: Connection) -> bytes | None:
        """What this connection is to send next; None once it has nothing more to say."""
        with self._changed:
            heartbeat_at = time.monotonic() + self.heartbeat_s
            while not connection.is_broken:
                if self._current is connection or connection.protocol.is_over:
                    piece = connection.protocol.outgoing()
                    if piece is not None:
                        self._changed.notify_all()  # there may be room for another message
                        return piece
                    if connection.protocol.is_over:
                        break
                    if connection.protocol.greeted and time.monotonic() >= min(
                        heartbeat_at, connection.confirm_at
                    ):
                        connection.confirm_at = float("inf")
                        return connection.protocol.heartbeat()
                    if self._closed or (self._closing and self._has_said_all()):
                        break
                elif connection.is_over:  # it has no part in the conversation, and nothing to say
                    break
                until = min(heartbeat_at, connection.confirm_at)
                self._changed.wait(max(0.0, until - time.monotonic()))
            return None

    def arrived(self, connection: Connection, piece: bytes) -> None:
        """Take in a piece; waits where the compute thread is behind. Raises what `ConnectionProtocol.take` does.

        A connection that has been greeted takes the place of the one before. Our greeting then says
        what we have, and the peer sends the rest again: so nothing more is taken from the old one.
        """
        with self._changed:
            if connection.is_replaced:
                return
            greeted = connection.protocol.greeted
            message = connection.protocol.take(piece)
            if connection.protocol.greeted and not greeted:
                self._take_over(connection)
            self._changed.notify_all()
            if message is None or self._end is not None:
                return
            now = time.monotonic()
            urgent = message.kind in (Kind.GOODBYE, Kind.FAILURE)
            connection.confirm_at = min(connection.confirm_at, now if urgent else now + CONFIRM_S)
            self.traffic.received.count(
                message.kind, connection.protocol.taken_bytes, now - connection.began
            )
            if message.tensor is not None:
                self.traffic.received.spans.append((connection.began, now))
            if message.kind is Kind.FAILURE:
                self._finish(failure_of(self.peer, message))
                return
            self._changed.wait_for(lambda: len(self._incoming) < QUEUED_MESSAGES or self._closing)
            self._incoming.append(message)
            self._changed.notify_all()

    def connection_over(
        self, connection: Connection, problem: CeluError, *, by_peer: bool
    ) -> CeluError:
        """A connection has ended; what its carrier may say of it.

        `by_peer`: the problem is what the peer said, and so ends the conversation, unless it was
        said over a connection that has no part in it.
        """
        with self._changed:
            another = self._current
            alive = another is not None and another is not connection and not another.is_over
            if isinstance(problem, PeerRestarted) and alive:
                problem = PeerLost(f"{self.peer} is connected already; try again later")
            elif by_peer and (self._current is connection or isinstance(problem, PeerRestarted)):
                self._finish(problem)
            connection.is_over, connection.problem = True, connection.problem or problem
            connection.is_broken = not by_peer  # else the peer can still be told why we stop
            if self._current is connection:
                self._why_down = str(connection.problem)
            if self._current is connection and self._down_since is None and not self.is_over:
                self._down_since = time.monotonic()
                if self._up_since is not None and not self._closing:
                    self._notice(LinkDown(peer=self.peer, reason=str(connection.problem)))
            self._changed.notify_all()
            return connection.problem

    def connection_mute(self, connection: Connection) -> None:
        """A connection will send no more."""
        with self._changed:
            connection.is_mute = True
            self._changed.notify_all()

    def _take_over(self, connection: Connection) -> None:
        old = self._current
        self._replace(connection)
        if old is not None and old is not connection and not old.is_over:
            old.cut(PeerLost("another connection took over"))
            # It may hold a message that there is no room for yet, which goes before ours.
            self._changed.wait_for(lambda: old.is_over or self._closing)
        now = time.monotonic()
        if self._down_since is not None and self._up_since is not None:
            seconds = round(now - self._down_since, 3)
            self._notice(LinkUp(peer=self.peer, seconds=seconds))
        self._up_since, self._down_since = now, None
        connection.up()

    def _replace(self, connection: Connection) -> None:
        """Have another connection deliver, before it says what we have."""
        if self._current is not None and self._current is not connection:
            self._current.is_replaced = True
        self._current = connection

    def _finish(self, problem: CeluError) -> None:
        self._end = self._end or problem
        self._changed.notify_all()

    def _has_room(self) -> bool:
        connection = self._current
        unsent = self._delivery.unconfirmed if connection is None else connection.protocol.unsent
        return unsent < QUEUED_MESSAGES and self._delivery.has_room()

    def _has_said_all(self) -> bool:
        return self._delivery.unconfirmed == 0 or self._end is not None

    def _wait(self, ready: Callable[[], bool], did: str) -> None:
        """Until it is ready; raises the link's end, or PeerLost where patience runs out."""
        began = time.monotonic()
        while not ready():
            if self._end is not None:
                raise self._end
            down = self._down_since is not None
            since = self._down_since if down else max(began, self._up_since or began)
            assert since is not None
            until = since + (self._outage_s if down else self._deadline_s)
            # Whatever comes and goes meanwhile, there is an end to it.
            until = min(until, began + self._deadline_s + self._outage_s)
            if time.monotonic() >= until:
                self._finish(self._out_of_patience(did, down=down))
            self._changed.wait(max(0.0, until - time.monotonic()))

    def _out_of_patience(self, did: str, *, down: bool) -> PeerLost:
        if not down:
            return PeerLost(
                f"{self.peer} {did} nothing for {self._deadline_s:g} s (deadline_s); "
                "is it still running?"
            )
        return PeerLost(
            f"the link to {self.peer} was down for {self._outage_s:g} s (outage_s): "
            f"{self._why_down}. "
            "Start again at all parties; a run goes on from its last checkpoint"
        )


class Connection:
    """One connection's end of a link, for its carrier.

    The carrier sets `explain` (its own errors as ours), `inner_tls`, `piece_bytes` and `cancel` (ends
    the connection at once, from any thread) before it begins.
    """

    def __init__(self, link: StreamLink, protocol: ConnectionProtocol) -> None:
        self.protocol = protocol
        self.peer = link.peer
        self.explain: Callable[[Exception], CeluError] | None = None
        self.inner_tls: InnerTls | None = None
        self.cancel: Callable[[], None] = lambda: None
        self.up: Callable[[], None] = lambda: None  # called when the connection is greeted
        self.is_replaced = False  # what it still brings, another connection brings again
        self.is_over = False  # nothing more is taken from it
        self.is_broken = False  # nothing more can be sent on it
        self.is_mute = False  # nothing more will be sent on it
        self.problem: CeluError | None = None  # why it ended, or was not let in
        self.confirm_at = float("inf")  # when to say at the latest what was received
        self.began = time.monotonic()  # when the message that is arriving did so
        self._link = link
        self._listening_since: float | None = None

    @property
    def piece_bytes(self) -> int:
        """The size of the pieces that messages are cut into."""
        return self.protocol.piece_bytes

    @piece_bytes.setter
    def piece_bytes(self, size: int) -> None:
        self.protocol.piece_bytes = size

    def is_silent(self, now: float) -> bool:
        """Whether it has listened in vain for two heartbeats."""
        since = self._listening_since
        return since is not None and is_silent(since, now, self._link.heartbeat_s)

    def cut(self, problem: CeluError) -> None:
        """End the connection, for this reason unless there is one already."""
        self.problem = self.problem or problem
        if self.inner_tls is not None:
            self.inner_tls.fail(problem)
        self.cancel()

    def end(self, problem: CeluError) -> None:
        """There is no connection, for this reason."""
        self._link.connection_over(self, problem, by_peer=False)

    def outgoing(self) -> Generator[bytes, None, None]:
        """What to send, for the carrier's sending thread; ends where nothing more is to be said."""
        link, inner_tls, line, began = self._link, self.inner_tls, self._link.line, time.monotonic()
        first: float | None = None  # when the first byte of a tensor's message was sent
        try:
            if inner_tls is not None and not (yield from inner_tls.flights()):
                return
            while (piece := link.next_piece(self)) is not None:
                starts = time.monotonic()
                if line is not None:
                    line.carry(len(piece), max(self.protocol.given_at, began))
                    starts = line.free_at - line.transfer_s
                yield piece if inner_tls is None else inner_tls.encrypt(piece)
                first = starts if first is None else first
                if self.protocol.tensor_left == 0:
                    ended = time.monotonic() if line is None else line.free_at
                    link.traffic.sent.spans.append((first, ended))
                if not self.protocol.tensor_left:
                    first = None
        except PeerLost:  # what arrived was tampered with; the receiving side says so
            return
        finally:  # also where the carrier drops us half-way: closing must not wait for more
            link.connection_mute(self)

    def pump(self, pieces: Iterator[bytes]) -> None:
        """Take in what arrives, for the carrier's receiving thread; returns when it ends."""
        if self.inner_tls is not None:
            pieces = self.inner_tls.opened(pieces)
        by_peer = False
        try:
            while True:
                self._listening_since = time.monotonic()
                piece = next(pieces, None)
                self._listening_since = None
                if piece is None:
                    raise PeerLost(f"{self.peer} closed the link")
                if not self.protocol.is_mid_message:
                    self.began = time.monotonic()
                by_peer = True
                self._link.arrived(self, piece)
                by_peer = False
        except Exception as error:  # whatever the carrier raises, it ends here, with its name
            self._listening_since = None
            explained = self._link.connection_over(self, self._explained(error), by_peer=by_peer)
            if self.inner_tls is not None:
                self.inner_tls.fail(explained)

    def _explained(self, error: Exception) -> CeluError:
        if isinstance(error, ProtocolError):
            return type(error)(f"from {self.peer}: {error}")
        if isinstance(error, CeluError):
            return error
        explained = self.explain(error) if self.explain else None
        return explained or PeerLost(f"the link to {self.peer} broke: {error}")
