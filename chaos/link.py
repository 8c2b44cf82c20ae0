"""A `Link` in virtual time, over the same `Delivery`, `ConnectionProtocol` and TLS as `stream`.

The dialing side reconnects with exponential backoff; the other accepts. A connection on which
nothing arrives for two heartbeats is closed, and so is one whose bytes TLS rejects; neither ends
the link.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace

from celu.errors import CeluError, PeerLost, PeerRestarted, ProtocolError
from celu.transport.delivery import Delivery
from celu.transport.message import Kind, Message, TensorSpec, TrafficBothWays, peer_failure
from celu.transport.reconnect import backoff
from celu.transport.stream import QUEUED_MESSAGES
from celu.transport.wire import check_finite, check_sendable
from chaos.connection import HEARTBEAT_S, Connection, LinkContext
from chaos.network import Socket

DEADLINE_S = 60.0  # for a peer that is connected but sends nothing
OUTAGE_S = 30.0  # for a link that is down
CONNECT_S = 60.0  # for a link that was never up


class ChaosLink:
    """See `Link`. To wait, it suspends until a time or until `wake` is called."""

    def __init__(self, context: LinkContext, peer: str, *, dials: bool) -> None:
        self.peer = peer
        self.traffic = TrafficBothWays()
        self.context = context
        self._simulator = context.process.simulator
        self._dials = dials
        token = f"{self._simulator.rng.getrandbits(128):032x}"
        self.delivery = Delivery(peer, token)
        self._incoming: deque[Message] = deque()
        self._current: Connection | None = None
        self._connections: list[Connection] = []
        self._end: CeluError | None = None
        self._closing = self._closed = False
        self._was_up = False
        self._up_since = self._simulator.now
        self._down_since: float | None = self._simulator.now
        self._pauses = backoff(self._simulator.rng)
        if dials:
            self._dial()

    # --- The `Link` interface.

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        """See `Link`."""
        self.delivery.specs = specs

    async def send(self, message: Message) -> None:
        """See `Link`."""
        if message.tensor is not None:
            message = replace(message, tensor=message.tensor.detach())
        check_sendable(message)
        await self._wait(self._has_room, "accepted")
        num_bytes = self.delivery.enqueue(message)
        self.context.observer.on_sent(self.delivery.token, message)
        self.traffic.sent.count(message.kind, num_bytes)
        if self._current is not None:
            self._current.flush()

    async def receive(self) -> Message:
        """See `Link`."""
        await self._wait(lambda: bool(self._incoming), "sent")
        message = self._incoming.popleft()
        if message.tensor is not None:
            check_finite(message.tensor, f"{message.kind.name} from {self.peer}", message.round)
        return message

    def close(self) -> None:
        """See `Link`; does not wait: the process exits once the link is flushed."""
        if not self._closing:
            self._closing = True
            if self._current is not None:
                self._current.acknowledge()

    # --- For its process.

    @property
    def is_flushed(self) -> bool:
        """Whether the peer has acknowledged every message, or the link has ended."""
        return self.delivery.unacknowledged == 0 or self._end is not None

    def end(self) -> None:
        """Close all connections now, even if messages are not acknowledged."""
        self._closing = self._closed = True
        for connection in list(self._connections):
            connection.end("the link is closed")

    def accept(self, socket: Socket) -> None:
        """Accept a connection of the peer."""
        if self._closed or self._end is not None:
            socket.close()
        else:
            self._connections.append(Connection(self, socket, dials=False))

    # --- For its connections.

    def on_piece(self, connection: Connection, piece: bytes) -> None:
        """See `ConnectionOwner`."""
        protocol = connection.protocol
        greeted = protocol.greeted
        try:
            message = protocol.receive_piece(piece)
        except PeerRestarted as error:
            if self._is_alive(self._current) and self._current is not connection:
                connection.end(f"rejected: {self.peer} is already connected")
            else:
                connection.end(str(error))
                self._finish(error)
            return
        except ProtocolError as error:
            if connection is self._current:
                self._finish(type(error)(f"from {self.peer}: {error}"))
            connection.end(str(error))
            return
        if protocol.greeted and not greeted:
            self._switch_to(connection)
        connection.flush()
        if protocol.is_over:
            connection.end(f"{self.peer} expects an earlier process of ours")
        if message is None:
            return
        self.context.observer.on_delivered(self.delivery.peer_token or "", message)
        self.traffic.received.count(message.kind, protocol.received_bytes)
        connection.acknowledge_soon(urgent=message.kind in (Kind.GOODBYE, Kind.FAILURE))
        if message.kind is Kind.FAILURE:
            self._finish(peer_failure(self.peer, message))
        else:
            self._incoming.append(message)
            self.context.wake()

    def on_ended(self, connection: Connection, reason: str) -> None:
        """See `ConnectionOwner`."""
        self._connections.remove(connection)
        if self._current is not connection:
            return
        if self._down_since is None:
            self._log(f"link to {self.peer} down: {reason}")
            self._down_since = self._simulator.now
        self.context.wake()
        if self._dials and not self._closed and self._end is None:
            self.context.process.after(next(self._pauses), self._dial)

    # --- Private.

    def _dial(self) -> None:
        if self._closed or self._end is not None or self._down_since is None:
            return
        socket = self.context.network.dial(self.context.process, self.peer)
        self._current = Connection(self, socket, dials=True)
        self._connections.append(self._current)

    def _switch_to(self, connection: Connection) -> None:
        """Make a connection that was greeted the current one."""
        old, self._current = self._current, connection
        if old is not None and old is not connection:
            old.end("another connection took over")
        self._log(f"link to {self.peer} up")
        self._was_up, self._up_since, self._down_since = True, self._simulator.now, None
        self._pauses = backoff(self._simulator.rng)

    def _is_alive(self, connection: Connection | None) -> bool:
        if connection is None or connection.is_over:
            return False
        return self._simulator.now - connection.last_received_at <= HEARTBEAT_S

    def _finish(self, problem: CeluError) -> None:
        self._end = self._end or problem
        self.context.wake()

    def _has_room(self) -> bool:
        current, delivery = self._current, self.delivery
        unsent = delivery.unacknowledged if current is None else current.protocol.unsent
        return unsent < QUEUED_MESSAGES and delivery.has_room()

    def _log(self, what: str) -> None:
        self._simulator.log(self.context.process.name, what)

    async def _wait(self, ready: Callable[[], bool], did: str) -> None:
        """Wait until ready; raises the error that ended the link, PeerLost at the deadline."""
        began = self._simulator.now
        while not ready():
            if self._end is not None:
                raise self._end
            if self._down_since is not None:
                timeout_s = OUTAGE_S if self._was_up else CONNECT_S
                until = self._down_since + timeout_s
                problem = f"the link to {self.peer} was down for {timeout_s:g} s"
            else:
                until = max(began, self._up_since) + DEADLINE_S
                problem = f"{self.peer} {did} nothing for {DEADLINE_S:g} s"
            if self._simulator.now >= until:
                self._finish(PeerLost(problem))
            else:
                await _suspend_until(until)


@types.coroutine
def _suspend_until(time: float) -> Generator[float, None, None]:
    yield time
