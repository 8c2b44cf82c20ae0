"""A party over its processes: begins, begins again, dies and is started anew by its operator."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from celu.checkpoint.writer import InlineWriter
from celu.errors import CeluError, PeerRestarted
from celu.events import Event
from celu.session import Result, guest_session, host_session
from celu.transport.stream import CLOSE_S
from chaos.cases import Case
from chaos.connection import Surroundings, Watcher
from chaos.disk import SimDisk
from chaos.link import ChaosLink
from chaos.wire import End, Network
from chaos.world import Process, World
from chaos.writing import Later, Promised, SimCheckpoints

_START_S = (0.1, 12.0)  # how long an operator takes to start a party again

Program = Coroutine[float, None, Result]


class Party:
    """What outlasts a party's processes: its disk, and what was promised to be on it.

    `ended` is told of every end: a Result, the error it stopped with, or None where it was killed.
    `emitted` is told of its events.
    """

    def __init__(
        self,
        name: str,
        case: Case,
        world: World,
        network: Network,
        watcher: Watcher,
        ended: Callable[[Party, Result | CeluError | None], None],
        emitted: Callable[[Party, Event], None],
        *,
        calls: bool,
        piece_bytes: int,
        sealed: bool,
        writes_later: bool,
        disk: SimDisk,
    ) -> None:
        self.name = name
        self.case = case
        self.world = world
        self.network = network
        self.watcher = watcher
        self.calls = calls
        self.piece_bytes = piece_bytes
        self.sealed = sealed
        self.writes_later = writes_later
        self.disk = disk
        self.promised = Promised()
        self.life: Life | None = None
        self.ended = ended
        self.emitted = emitted

    def start(self) -> None:
        """Start a process of it, unless one is there."""
        if self.life is None:
            self.world.note(self.name, "starts")
            self.life = Life(self)

    def over(self, end: Result | CeluError | None) -> None:
        """Its process is gone; its operator starts another, once it is seen."""
        self.life = None
        self.world.after(self.world.chance.uniform(*_START_S), self.start)
        self.ended(self, end)

    def checkpoints(self, process: Process | None = None) -> SimCheckpoints:
        """What it keeps; in a process that writes beside its work, if that is given."""
        writer = InlineWriter() if process is None or not self.writes_later else Later(process)
        return SimCheckpoints(self.disk, writer, self.promised)


class Life:
    """One process of a party."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._world = party.world
        self.process = Process(party.world, party.name, self._killed)
        self.links: dict[str, ChaosLink] = {}
        self._program: Program | None = None
        self._is_woken = False
        self._sleeps_until = float("inf")
        self._end: Result | CeluError | None = None  # what the program ended with
        party.network.listen(self.process, self._accept)
        self.process.after(0.0, self._begin)

    def wake(self) -> None:
        """Let the program go on, soon."""
        if not self._is_woken:
            self._is_woken = True
            self.process.after(0.0, self._step)

    def abandon(self) -> None:
        """Let go of what the program holds; the world is over."""
        self.process.exit()
        if self._program is not None:
            self._program.close()

    def _begin(self) -> None:
        """One conversation, from fresh modules on."""
        party, job, name = self._party, self._party.case.job, self._party.name
        around = Surroundings(
            self.process, party.network, party.watcher, self.wake, party.piece_bytes, party.sealed
        )
        peers = list(job.hosts) if name == job.guest else [job.guest]
        self.links = {peer: ChaosLink(around, peer, calls=party.calls) for peer in peers}
        self._end = None
        checkpoints, clock = party.checkpoints(self.process), lambda: self._world.now
        if name == job.guest:
            guest = party.case.guest()
            self._program = guest_session(
                name, guest, job, self.links, self._emit, clock, checkpoints
            )
        else:
            host, link = party.case.host(name), self.links[job.guest]
            self._program = host_session(name, host, job, link, self._emit, clock, checkpoints)
        self._step()

    def _step(self) -> None:
        self._is_woken = False
        if self._program is None:
            self._leave_if_all_is_said()
            return
        try:
            until = self._program.send(None)
        except StopIteration as done:
            self._ended(done.value)
        except CeluError as error:
            self._ended(error)
        else:
            self._wake_at(until)

    def _ended(self, end: Result | CeluError) -> None:
        """The program is over; its links stay until all is said, or for a while."""
        what = f"{type(end).__name__} {end}" if isinstance(end, CeluError) else "done"
        self._world.note(self._party.name, what)
        self._program, self._end = None, end
        for link in self.links.values():
            link.close()
        self._wake_at(self._world.now + CLOSE_S)
        self._leave_if_all_is_said()

    def _leave_if_all_is_said(self) -> None:
        patience = self._world.now < self._sleeps_until
        if patience and not all(link.has_said_all for link in self.links.values()):
            return
        for link in self.links.values():
            link.end()
        if isinstance(self._end, PeerRestarted):
            self._begin()
            return
        self.process.exit()
        self._party.network.gone(self.process, silently=False)
        self._party.over(self._end)

    def _killed(self, power_cut: bool) -> None:
        self._party.network.gone(self.process, silently=power_cut)
        if self._program is not None:
            self._program.close()
        if power_cut:
            self._party.disk.cut_power(self._world.chance)
        self._party.over(None)

    def _wake_at(self, time: float) -> None:
        self._sleeps_until = time
        self.process.after(time - self._world.now, lambda: self._wake_if_due(time))

    def _wake_if_due(self, time: float) -> None:
        if self._sleeps_until == time:
            self.wake()

    def _accept(self, end: End) -> None:
        if end.peer in self.links:
            self.links[end.peer].accept(end)
        else:
            end.close()

    def _emit(self, event: Event) -> None:
        self._party.emitted(self._party, event)
