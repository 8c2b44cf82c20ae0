"""Connections between processes: byte strings with delays, and all that can befall them.

Left alone, a connection brings records across in order, each after a delay of its own, and tells
either side when the other closes it. A party's name stands for its address.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from chaos.world import Process, World

Way = tuple[str, str]  # from, to
Tampering = Callable[[bytes], list[bytes]]  # what arrives in a record's place
_DELAY_S = (0.001, 0.03)


class End:
    """One process's end of a connection; whoever holds it sets what is done with arrivals."""

    def __init__(self, network: Network, owner: Process, peer: str) -> None:
        self.owner = owner
        self.peer = peer
        self.other: End | None = None
        self.is_open = True
        self.on_reached: Callable[[], None] = lambda: None
        self.on_record: Callable[[bytes], None] = lambda record: None
        self.on_close: Callable[[], None] = lambda: None
        self.last_arrival = 0.0  # at the other side
        self.is_lossy = False  # something was lost on its way from here: nothing follows it
        self._network = network

    def send(self, record: bytes) -> None:
        """Hand a record to the wire."""
        if self.is_open:
            self._network.carry(self, record)

    def close(self, *, tell: bool = True) -> None:
        """End the connection; without `tell`, as one whose machine is gone."""
        if self.is_open:
            self.is_open = False
            if tell:
                self._network.carry(self, None)

    def reached(self) -> None:
        """The one that was called has answered."""
        if self.is_open:
            self.on_reached()

    def arrived(self, record: bytes | None) -> None:
        """A record has come, or the news that the other side has closed (None)."""
        if not self.is_open:
            return
        if record is None:
            self.is_open = False
            self.on_close()
        else:
            self.on_record(record)


class Network:
    """All wires, and what is wrong with them just now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._listening: dict[str, tuple[Process, Callable[[End], None]]] = {}
        self._cut_until: dict[Way, float] = {}
        self._held_until: dict[Way, float] = {}
        self._tampering: dict[Way, deque[Tampering]] = {}
        self._ends: list[End] = []

    def listen(self, process: Process, accept: Callable[[End], None]) -> None:
        """A process waits for calls from now on."""
        self._listening[process.name] = (process, accept)

    def dial(self, caller: Process, name: str) -> End:
        """Call a party; the end is told once it is reached. Where nobody listens, it is closed."""
        near = End(self, caller, name)
        way = (caller.name, name)
        self._ends = [end for end in self._ends if end.is_open]
        self._ends.append(near)

        def reach() -> None:
            if self._is_cut(way):
                return  # nobody says so; the caller has to notice
            callee, accept = self._listening.get(name, (None, None))
            if callee is None or accept is None or not callee.is_alive:
                self._world.after(self._delay(), lambda: caller.do(lambda: near.arrived(None)))
                return
            far = End(self, callee, caller.name)
            near.other, far.other = far, near
            self._ends.append(far)
            callee.do(lambda: accept(far))
            back = way[::-1]
            if self._is_cut(back):
                far.is_lossy = True
            else:
                answer = self._arrival(far, back)
                self._world.after(answer - self._world.now, lambda: caller.do(near.reached))

        arrival = self._arrival(near, way)
        self._world.after(arrival - self._world.now, reach)
        return near

    def carry(self, end: End, record: bytes | None) -> None:
        """Bring a record, or the news of a close, to the other end."""
        way = (end.owner.name, end.peer)
        if self._is_cut(way) or end.is_lossy:
            end.is_lossy = True
            return
        tampering = self._tampering.get(way)
        records: list[bytes] | list[None] = [None] if record is None else [record]
        if record is not None and tampering:
            records = tampering.popleft()(record)
        for one in records:
            self._deliver(end, way, one)

    def cut(self, way: Way, seconds: float) -> None:
        """What is sent that way is lost from now on; connections do not outlive a loss."""
        self._cut_until[way] = self._world.now + seconds

    def hold(self, way: Way, seconds: float) -> None:
        """What is sent that way arrives only later."""
        self._held_until[way] = self._world.now + seconds

    def tamper(self, way: Way, tampering: Tampering) -> None:
        """Do something to the next record sent that way."""
        self._tampering.setdefault(way, deque()).append(tampering)

    def reset(self, way: Way) -> None:
        """End the connections between two parties; both learn of it at once."""
        for end in self._ends:
            if end.is_open and (end.owner.name, end.peer) in (way, way[::-1]):
                end.owner.do(partial(end.arrived, None))

    def gone(self, process: Process, *, silently: bool) -> None:
        """A process is no more; its kernel says so, unless that is gone, too."""
        self._listening.pop(process.name, None)
        for end in self._ends:
            if end.owner is process:
                end.close(tell=not silently)

    def calm(self) -> None:
        """Nothing is wrong any more."""
        self._cut_until.clear()
        self._held_until.clear()
        self._tampering.clear()

    def _deliver(self, end: End, way: Way, record: bytes | None) -> None:
        def arrive() -> None:
            if end.other is not None:
                other = end.other
                other.owner.do(lambda: other.arrived(record))

        self._world.after(self._arrival(end, way) - self._world.now, arrive)

    def _arrival(self, end: End, way: Way) -> float:
        leaves = max(self._world.now, self._held_until.get(way, 0.0))
        end.last_arrival = max(end.last_arrival, leaves + self._delay())
        return end.last_arrival

    def _is_cut(self, way: Way) -> bool:
        return self._cut_until.get(way, 0.0) > self._world.now

    def _delay(self) -> float:
        return self._world.chance.uniform(*_DELAY_S)
