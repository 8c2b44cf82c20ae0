"""A `Link` in virtual time: what `stream` is over threads, over the same `Delivery`, `ConnectionProtocol` and TLS.

The side that calls dials again with growing backoff; the other waits to be called. A connection
that is not heard of for two heartbeats is ended, whatever is wrong with it, and so is one whose
bytes TLS does not accept: neither ends the link.
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
from chaos.connection import HEARTBEAT_S, Connection, Surroundings
from chaos.wire import End

DEADLINE_S = 60.0  # of a peer that is there but says nothing
OUTAGE_S = 30.0  # of a link that is down
CONNECT_S = 60.0  # ... and was never up


class ChaosLink:
    """See `Link`. Waiting is suspending until a time, or until `wake` is called before."""

    def __init__(self, around: Surroundings, peer: str, *, calls: bool) -> None:
        self.peer = peer
        self.traffic = TrafficBothWays()
        self.around = around
        self._world = around.process.world
        self._calls = calls
        token = f"{self._world.chance.getrandbits(128):032x}"
        self.delivery = Delivery(peer, token)
        self._incoming: deque[Message] = deque()
        self._current: Connection | None = None
        self._connections: list[Connection] = []
        self._end: CeluError | None = None
        self._closing = self._closed = False
        self._was_up = False
        self._up_since = self._world.now
        self._down_since: float | None = self._world.now
        self._pauses = backoff(self._world.chance)
        if calls:
            self._dial()

    @property
    def has_said_all(self) -> bool:
        """Whether the peer has all that it was told, or will not take any more."""
        return self.delivery.unconfirmed == 0 or self._end is not None

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        """See `Link`."""
        self.delivery.specs = specs

    async def send(self, message: Message) -> None:
        """See `Link`."""
        if message.tensor is not None:
            message = replace(message, tensor=message.tensor.detach())
        check_sendable(message)
        await self._wait(self._has_room, "took")
        num_bytes = self.delivery.give(message)
        self.around.watcher.given(self.delivery.token, message)
        self.traffic.sent.count(message.kind, num_bytes)
        if self._current is not None:
            self._current.pump()

    async def receive(self) -> Message:
        """See `Link`."""
        await self._wait(lambda: bool(self._incoming), "sent")
        message = self._incoming.popleft()
        if message.tensor is not None:
            check_finite(message.tensor, f"{message.kind.name} from {self.peer}", message.round)
        return message

    def close(self) -> None:
        """See `Link`; does not wait: the process stays until all is said."""
        if not self._closing:
            self._closing = True
            if self._current is not None:
                self._current.confirm()

    def end(self) -> None:
        """Close it for good, whatever is left to be said."""
        self._closing = self._closed = True
        for connection in list(self._connections):
            connection.end("the link is closed")

    def accept(self, end: End) -> None:
        """The peer calls."""
        if self._closed or self._end is not None:
            end.close()
        else:
            self._connections.append(Connection(self, end, calls=False))

    def _dial(self) -> None:
        if self._closed or self._end is not None or self._down_since is None:
            return
        end = self.around.network.dial(self.around.process, self.peer)
        self._current = Connection(self, end, calls=True)
        self._connections.append(self._current)

    # --- For connections.

    def arrived(self, connection: Connection, piece: bytes) -> None:
        """Take in a piece."""
        greeted = connection.connection.greeted
        try:
            message = connection.connection.take(piece)
        except PeerRestarted as error:
            if self._is_alive(self._current) and self._current is not connection:
                connection.end(f"refused: {self.peer} is connected already")
            else:
                connection.end(str(error))
                self._finish(error)
            return
        except ProtocolError as error:
            if connection is self._current:
                self._finish(type(error)(f"from {self.peer}: {error}"))
            connection.end(str(error))
            return
        if connection.connection.greeted and not greeted:
            self._take_over(connection)
        connection.pump()
        if connection.connection.is_over:
            connection.end(f"{self.peer} takes us for another process")
        if message is None:
            return
        self.around.watcher.delivered(self.delivery.their_token or "", message)
        self.traffic.received.count(message.kind, connection.connection.taken_bytes)
        connection.confirm_soon(urgent=message.kind in (Kind.GOODBYE, Kind.FAILURE))
        if message.kind is Kind.FAILURE:
            self._finish(peer_failure(self.peer, message))
        else:
            self._incoming.append(message)
            self.around.wake()

    def over(self, connection: Connection, reason: str) -> None:
        """A connection has ended."""
        self._connections.remove(connection)
        if self._current is not connection:
            return
        if self._down_since is None:
            self._world.note(self.around.process.name, f"link to {self.peer} down: {reason}")
            self._down_since = self._world.now
        self.around.wake()
        if self._calls and not self._closed and self._end is None:
            self.around.process.after(next(self._pauses), self._dial)

    def _take_over(self, connection: Connection) -> None:
        old, self._current = self._current, connection
        if old is not None and old is not connection:
            old.end("another connection took over")
        self._world.note(self.around.process.name, f"link to {self.peer} up")
        self._was_up, self._up_since, self._down_since = True, self._world.now, None
        self._pauses = backoff(self._world.chance)

    def _is_alive(self, connection: Connection | None) -> bool:
        if connection is None or connection.is_over:
            return False
        return self._world.now - connection.heard_at <= HEARTBEAT_S

    def _finish(self, problem: CeluError) -> None:
        self._end = self._end or problem
        self.around.wake()

    def _has_room(self) -> bool:
        unsent = (
            self.delivery.unconfirmed if self._current is None else self._current.connection.unsent
        )
        return unsent < QUEUED_MESSAGES and self.delivery.has_room()

    async def _wait(self, ready: Callable[[], bool], did: str) -> None:
        """Until it is ready; raises the link's end, or PeerLost where patience runs out."""
        began = self._world.now
        while not ready():
            if self._end is not None:
                raise self._end
            if self._down_since is not None:
                patience = OUTAGE_S if self._was_up else CONNECT_S
                until = self._down_since + patience
                problem = f"the link to {self.peer} was down for {patience:g} s"
            else:
                until = max(began, self._up_since) + DEADLINE_S
                problem = f"{self.peer} {did} nothing for {DEADLINE_S:g} s"
            if self._world.now >= until:
                self._finish(PeerLost(problem))
            else:
                await _until(until)


@types.coroutine
def _until(time: float) -> Generator[float, None, None]:
    yield time
