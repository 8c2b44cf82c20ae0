"""A party and its processes: a process starts, restarts its session, ends, is killed, is restarted.

The sessions are the real ones of `celu.session`; their links, disk and clock are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from celu.checkpoint.writer import InlineWriter
from celu.errors import CeluError, PeerRestarted
from celu.event_log import EventLog
from celu.events import Event, Restarted, TrainingStarted, Warned
from celu.result import Result
from celu.session import guest_session, host_session
from celu.transport.stream import CLOSE_S
from chaos.checkpoint_writer import DelayedWriter, DurableRound, SimCheckpoints
from chaos.connection import LinkContext, MessageObserver
from chaos.disk import SimDisk
from chaos.link import ChaosLink
from chaos.log_file import open_log
from chaos.network import Network, Socket
from chaos.scenarios import Scenario
from chaos.simulator import Process, Simulator

_RESTART_S = (0.1, 12.0)  # how long an operator takes to restart a party

Session = Coroutine[float, None, Result]


class Party:
    """What survives a party's processes: its disk, and which round must be durable on it.

    `restart_from` is the round of `--restart-from`, if its operator passes that option the next
    time. `is_done` says whether the run has ended here, and its last checkpoint was not lost since.
    `on_end` is called when a process ends: with a Result, the error it stopped with, or None if it
    was killed. `on_event` is called with its events.
    """

    def __init__(
        self,
        name: str,
        scenario: Scenario,
        simulator: Simulator,
        network: Network,
        observer: MessageObserver,
        on_end: Callable[[Party, Result | CeluError | None], None],
        on_event: Callable[[Party, Event], None],
        *,
        dials: bool,
        piece_bytes: int,
        inner_tls: bool,
        delayed_writes: bool,
        disk: SimDisk,
    ) -> None:
        self.name = name
        self.scenario = scenario
        self.simulator = simulator
        self.network = network
        self.observer = observer
        self.dials = dials
        self.piece_bytes = piece_bytes
        self.inner_tls = inner_tls
        self.delayed_writes = delayed_writes
        self.disk = disk
        self.durable = DurableRound()
        self.restart_from: int | None = None
        self.is_done = False
        self.running: PartyProcess | None = None
        self.on_end = on_end
        self.on_event = on_event

    def start(self) -> None:
        """Start a process, unless one is running."""
        if self.running is None:
            self.simulator.log(self.name, "starts")
            self.running = PartyProcess(self)

    def process_ended(self, end: Result | CeluError | None) -> None:
        """Schedule a restart by the operator, and report how the process ended."""
        self.running = None
        self.simulator.after(self.simulator.rng.uniform(*_RESTART_S), self.start)
        self.on_end(self, end)

    def checkpoints(self, process: Process | None = None) -> SimCheckpoints:
        """Its checkpoints; a process may write them with a delay."""
        delayed = process is not None and self.delayed_writes
        writer = DelayedWriter(process) if process is not None and delayed else InlineWriter()
        return SimCheckpoints(self.disk, writer, self.durable)


class PartyProcess:
    """One process of a party."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._simulator = party.simulator
        self.process = Process(party.simulator, party.name, self._on_kill)
        self.links: dict[str, ChaosLink] = {}
        self._session: Session | None = None
        self._is_scheduled = False
        self._sleeps_until = float("inf")
        self._end: Result | CeluError | None = None  # of the session
        self._log: EventLog | None = None
        party.network.listen(self.process, self._accept)
        self.process.after(0.0, self._start)

    def wake(self) -> None:
        """Schedule the session to continue."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self.process.after(0.0, self._step)

    def abandon(self) -> None:
        """Close the session's coroutine, because the simulation has ended."""
        self.process.exit()
        if self._session is not None:
            self._session.close()

    def _start(self) -> None:
        """Open the run folder, and give up checkpoints if the operator says so, as `celu.run`."""
        party = self._party
        try:
            self._log = open_log(party.disk, self._simulator)
            for event in self._log.opening_events():
                self._emit(event)
            if party.restart_from is not None:
                party.checkpoints().restart_from(party.restart_from)
                self._emit(Warned(message=f"restarts from round {party.restart_from}"))
                party.restart_from = None
        except CeluError as error:
            self._on_session_end(error)
        else:
            self._start_session()

    def _start_session(self) -> None:
        """Start a session with fresh modules and links."""
        party, job, name = self._party, self._party.scenario.job, self._party.name
        context = LinkContext(
            self.process,
            party.network,
            party.observer,
            self.wake,
            party.piece_bytes,
            party.inner_tls,
        )
        peers = list(job.hosts) if name == job.guest else [job.guest]
        self.links = {peer: ChaosLink(context, peer, dials=party.dials) for peer in peers}
        self._end = None
        checkpoints, clock = party.checkpoints(self.process), lambda: self._simulator.now
        if name == job.guest:
            guest = party.scenario.guest()
            self._session = guest_session(
                name, guest, job, self.links, self._emit, clock, checkpoints
            )
        else:
            host, link = party.scenario.host(name), self.links[job.guest]
            self._session = host_session(name, host, job, link, self._emit, clock, checkpoints)
        self._step()

    def _step(self) -> None:
        """Run the session until it waits or ends."""
        self._is_scheduled = False
        if self._session is None:
            self._exit_if_flushed()
            return
        try:
            until = self._session.send(None)
        except StopIteration as done:
            self._on_session_end(done.value)
        except CeluError as error:
            self._on_session_end(error)
        else:
            self._wake_at(until)

    def _on_session_end(self, end: Result | CeluError) -> None:
        """Close the links, which stay until they are flushed or CLOSE_S has passed."""
        what = f"{type(end).__name__} {end}" if isinstance(end, CeluError) else "done"
        self._simulator.log(self._party.name, what)
        self._session, self._end = None, end
        for link in self.links.values():
            link.close()
        self._wake_at(self._simulator.now + CLOSE_S)
        self._exit_if_flushed()

    def _exit_if_flushed(self) -> None:
        in_time = self._simulator.now < self._sleeps_until
        if in_time and not all(link.is_flushed for link in self.links.values()):
            return
        for link in self.links.values():
            link.end()
        if isinstance(self._end, PeerRestarted):
            try:
                self._emit(Restarted(message=str(self._end)))
                self._start_session()
                return
            except CeluError as error:
                self._end = error
        self.process.exit()
        self._party.network.disconnect(self.process, silently=False)
        self._party.process_ended(self._end)

    def _on_kill(self, power_cut: bool) -> None:
        self._party.network.disconnect(self.process, silently=power_cut)
        if self._session is not None:
            self._session.close()
        if power_cut:
            self._party.disk.cut_power(self._simulator.rng)
        self._party.process_ended(None)

    def _wake_at(self, time: float) -> None:
        self._sleeps_until = time
        self.process.after(time - self._simulator.now, lambda: self._wake_if_due(time))

    def _wake_if_due(self, time: float) -> None:
        if self._sleeps_until == time:
            self.wake()

    def _accept(self, socket: Socket) -> None:
        if socket.peer in self.links:
            self.links[socket.peer].accept(socket)
        else:
            socket.close()

    def _emit(self, event: Event) -> None:
        assert self._log is not None  # opened first
        if isinstance(event, TrainingStarted):
            self._party.restart_from = None  # the operators see that the run continues
        self._party.on_event(self._party, self._log.append(event))
