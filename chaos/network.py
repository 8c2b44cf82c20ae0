"""A simulated network: connections that carry records with delays, and faults in them.

Without faults, a connection delivers records in order, each after its own delay, and reports when
the other side closes it. A party's name is its address.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from chaos.simulator import Process, Simulator

Direction = tuple[str, str]  # from, to
Tampering = Callable[[bytes], list[bytes]]  # maps a record to those that arrive instead
_DELAY_S = (0.001, 0.03)


class Socket:
    """One process's end of a connection; its user sets the callbacks."""

    def __init__(self, network: Network, owner: Process, peer: str, connection: int) -> None:
        self.owner = owner
        self.peer = peer
        self.connection = connection  # number of the connection, the same at both ends
        self.other: Socket | None = None
        self.is_open = True
        self.on_connected: Callable[[], None] = lambda: None
        self.on_record: Callable[[bytes], None] = lambda record: None
        self.on_close: Callable[[], None] = lambda: None
        self.last_arrival = 0.0  # at the other side
        self.is_lossy = False  # a record from here was lost, so no later one may arrive
        self._network = network

    def send(self, record: bytes) -> None:
        """Send a record."""
        if self.is_open:
            self._network.transmit(self, record)

    def close(self, *, notify: bool = True) -> None:
        """Close the connection; without `notify`, like a machine that lost power."""
        if self.is_open:
            self.is_open = False
            if notify:
                self._network.transmit(self, None)

    def connected(self) -> None:
        """The other side has accepted the connection."""
        if self.is_open:
            self.on_connected()

    def receive(self, record: bytes | None) -> None:
        """A record has arrived; None: the other side has closed the connection."""
        if not self.is_open:
            return
        if record is None:
            self.is_open = False
            self.on_close()
        else:
            self.on_record(record)


class Network:
    """All connections, and the network faults at this time."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._listening: dict[str, tuple[Process, Callable[[Socket], None]]] = {}
        self._partitioned_until: dict[Direction, float] = {}
        self._delayed_until: dict[Direction, float] = {}
        self._tampering: dict[Direction, deque[Tampering]] = {}
        self._sockets: list[Socket] = []
        self._num_connections = 0

    def listen(self, process: Process, accept: Callable[[Socket], None]) -> None:
        """Call `accept` with each connection that is made to this process."""
        self._listening[process.name] = (process, accept)

    def dial(self, client: Process, name: str) -> Socket:
        """Connect to a party; the socket is notified, or closed if the party does not listen."""
        self._num_connections += 1
        number = self._num_connections
        near = Socket(self, client, name, number)
        direction = (client.name, name)
        self._sockets = [socket for socket in self._sockets if socket.is_open]
        self._sockets.append(near)

        def arrive() -> None:
            if self._is_partitioned(direction):
                return  # without a notice: the client has to time out
            server, accept = self._listening.get(name, (None, None))
            if server is None or accept is None or not server.is_alive:
                self._simulator.after(self._delay(), lambda: client.run(lambda: near.receive(None)))
                return
            far = Socket(self, server, client.name, number)
            near.other, far.other = far, near
            self._sockets.append(far)
            server.run(lambda: accept(far))
            back = direction[::-1]
            if self._is_partitioned(back):
                far.is_lossy = True
            else:
                answer = self._arrival(far, back)
                self._simulator.after(
                    answer - self._simulator.now, lambda: client.run(near.connected)
                )

        arrival = self._arrival(near, direction)
        self._simulator.after(arrival - self._simulator.now, arrive)
        return near

    def transmit(self, socket: Socket, record: bytes | None) -> None:
        """Deliver a record, or the notice of a close (None), to the other end."""
        direction = (socket.owner.name, socket.peer)
        if self._is_partitioned(direction) or socket.is_lossy:
            socket.is_lossy = True
            return
        tampering = self._tampering.get(direction)
        records: list[bytes] | list[None] = [None] if record is None else [record]
        if record is not None and tampering:
            records = tampering.popleft()(record)
        for arriving in records:
            self._deliver(socket, direction, arriving)

    def partition(self, direction: Direction, seconds: float) -> None:
        """Lose what is sent in this direction; a connection does not survive a loss."""
        self._partitioned_until[direction] = self._simulator.now + seconds

    def delay(self, direction: Direction, seconds: float) -> None:
        """Hold back what is sent in this direction."""
        self._delayed_until[direction] = self._simulator.now + seconds

    def tamper(self, direction: Direction, tampering: Tampering) -> None:
        """Modify the next record that is sent in this direction."""
        self._tampering.setdefault(direction, deque()).append(tampering)

    def reset(self, direction: Direction) -> None:
        """Close the connections between two parties; both are notified at once."""
        for socket in self._sockets:
            ends = (socket.owner.name, socket.peer)
            if socket.is_open and ends in (direction, direction[::-1]):
                socket.owner.run(partial(socket.receive, None))

    def disconnect(self, process: Process, *, silently: bool) -> None:
        """Close the connections of a process that ended; its kernel notifies, unless silently."""
        self._listening.pop(process.name, None)
        for socket in self._sockets:
            if socket.owner is process:
                socket.close(notify=not silently)

    def heal(self) -> None:
        """End all faults."""
        self._partitioned_until.clear()
        self._delayed_until.clear()
        self._tampering.clear()

    def _deliver(self, socket: Socket, direction: Direction, record: bytes | None) -> None:
        def arrive() -> None:
            if socket.other is not None:
                other = socket.other
                other.owner.run(lambda: other.receive(record))

        arrival = self._arrival(socket, direction)
        self._simulator.after(arrival - self._simulator.now, arrive)

    def _arrival(self, socket: Socket, direction: Direction) -> float:
        sent_at = max(self._simulator.now, self._delayed_until.get(direction, 0.0))
        socket.last_arrival = max(socket.last_arrival, sent_at + self._delay())
        return socket.last_arrival

    def _is_partitioned(self, direction: Direction) -> bool:
        return self._partitioned_until.get(direction, 0.0) > self._simulator.now

    def _delay(self) -> float:
        return self._simulator.rng.uniform(*_DELAY_S)
