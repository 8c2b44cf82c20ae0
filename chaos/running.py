"""One run under a nemesis, from its seed to its verdict; and many."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch

from celu.errors import CeluError, CheckpointError
from celu.events import Event
from celu.session import Result
from celu.simulation import simulate
from celu.transport.message import Message
from celu.transport.wire import PIECE_BYTES
from chaos.cases import NUM_CASES, Case, case
from chaos.checks import (
    Kept,
    Ledger,
    Rounds,
    Violated,
    check_durable,
    check_error,
    check_kept,
    kept_of,
)
from chaos.disk import SimDisk
from chaos.life import Party
from chaos.nemesis import KINDS, QUIET_S, Fault, Nemesis, Scale, draw
from chaos.wire import Network
from chaos.world import World

# Mostly as ever, sometimes so few that even a small message is cut up.
_PIECE_BYTES = (*[PIECE_BYTES] * 5, 100)
# Once nothing goes wrong any more, a run must end within so long: a few of the longest waits.
_TO_END_S = 600.0


@dataclass(frozen=True)
class Verdict:
    """How a run went."""

    seed: int
    problem: str | None  # None: every promise was kept
    struck: Counter[str]  # faults by kind
    ends: Counter[str]  # how processes ended, by kind
    seconds: float  # virtual
    trace: list[str] = field(default_factory=list)


def run_seed(
    seed: int,
    *,
    kinds: Sequence[str] = KINDS,
    traced: bool = False,
    make_disk: Callable[[], SimDisk] = SimDisk,
) -> Verdict:
    """The run of a seed, with faults of these kinds. It raises nothing: the verdict tells."""
    chance = random.Random(seed)  # noqa: S311 - it must repeat itself
    which = case(chance.randrange(NUM_CASES))
    due, scale = undisturbed(which.number)
    faults = draw(chance, which.names, scale, kinds)
    run = _Run(which, seed, faults, due, traced=traced, make_disk=make_disk)
    return run.verdict(seed)


@cache
def undisturbed(number: int) -> tuple[dict[str, Kept], Scale]:
    """How a case ends at each party when nothing goes wrong, and how long it takes.

    It must end so in memory, too, without wires and disks: raises Violated otherwise.
    """
    which = case(number)
    run = _Run(which, number, [], None)
    verdict = run.verdict(number)
    if verdict.problem is not None:
        raise Violated(f"case {number} fails undisturbed: {verdict.problem}")
    guest, hosts = which.guest(), {name: which.host(name) for name in which.job.hosts}
    simulate(which.job, guest, hosts)
    modules = {which.job.guest: {"top": guest.top, "bottom": guest.bottom}}
    modules |= {name: {"bottom": host.bottom} for name, host in hosts.items()}
    for party, own in modules.items():
        tensors, _ = run.kept[party]
        for module, live in own.items():
            assert live is not None  # every case has a bottom at all parties
            for name, tensor in live.state_dict().items():
                if not torch.equal(tensors[f"weights.{module}.{name}"], tensor):
                    raise Violated(f"case {number}: {party} has other weights than in memory")
    sends, operations = run.nemesis.counted("sends"), run.nemesis.counted("operations")
    return run.kept, Scale(verdict.seconds, sends, operations)


class _Run:
    """All parties of a case in a world of their own."""

    def __init__(
        self,
        which: Case,
        seed: int,
        faults: Sequence[Fault],
        due: dict[str, Kept] | None,
        *,
        traced: bool = False,
        make_disk: Callable[[], SimDisk] = SimDisk,
    ) -> None:
        self.world = World(seed, traced=traced)
        self.kept: dict[str, Kept] = {}
        self._due = due
        self._ends: Counter[str] = Counter()
        self._undone = set(which.names)
        self._rounds = Rounds()
        self._ledger = Ledger()
        network = Network(self.world)
        hosts_call = self.world.chance.random() < 0.5
        piece_bytes = self.world.chance.choice(_PIECE_BYTES)
        sealed = self.world.chance.random() < 0.5
        writes_later = self.world.chance.random() < 0.5
        self.parties = {
            name: Party(
                name,
                which,
                self.world,
                network,
                _Watching(self, name),
                self._ended,
                self._emitted,
                calls=hosts_call == (name != which.job.guest),
                piece_bytes=piece_bytes,
                sealed=sealed,
                writes_later=writes_later,
                disk=make_disk(),
            )
            for name in which.names
        }
        self.nemesis = Nemesis(faults, self.world, network, self.parties)
        callers, way = "hosts" if hosts_call else "the guest", "sealed" if sealed else "direct"
        self.world.note("", f"case {which.number}, {callers} call, {way}")
        for fault in faults:
            self.world.note("", f"to come: {fault}")
        for party in self.parties.values():
            self.world.after(self.world.chance.uniform(0.0, 1.0), party.start)

    def verdict(self, seed: int) -> Verdict:
        """Let it run."""
        problem = None
        try:
            if not self.world.run(self._is_over, QUIET_S + _TO_END_S):
                waiting = ", ".join(sorted(self._undone))
                problem = f"hangs: {waiting} not done {_TO_END_S:g} s after the last fault"
        except Violated as error:
            problem = str(error)
        except Exception:  # whatever else comes out of a party is a failure as well
            problem = f"an unforeseen failure: {traceback.format_exc()}"
        finally:
            for party in self.parties.values():
                if party.life is not None:
                    party.life.abandon()
        struck = self.nemesis.struck
        return Verdict(seed, problem, struck, self._ends, self.world.now, self.world.trace or [])

    def given(self, party: str, token: str, message: Message) -> None:
        """A party sends a message; raises Killed where it does not live to see it go."""
        self._ledger.given(token, message)
        self.nemesis.sends(party)

    def delivered(self, token: str, message: Message) -> None:
        """A message is delivered."""
        self._ledger.delivered(token, message)

    def _is_over(self) -> bool:
        return not self._undone

    def _ended(self, party: Party, end: Result | CeluError | None) -> None:
        ended = type(end).__name__
        if isinstance(end, Result):
            ended = "done"
            self._undone.discard(party.name)
        self._ends["killed" if end is None else ended] += 1
        if "rot" not in self.nemesis.struck:
            check_durable(party)
        if isinstance(end, CeluError):
            check_error(party.name, end, self.nemesis.struck)
        elif end is not None:
            self._check_done(party, end)

    def _check_done(self, party: Party, result: Result) -> None:
        try:
            self.kept[party.name] = kept_of(party, result)
        except CheckpointError as error:
            if "rot" not in self.nemesis.struck:  # which may meet the last checkpoint, too
                raise Violated(f"{party.name} is done and holds no final checkpoint") from error
            return
        if self._due is not None:
            check_kept(party.name, self.kept[party.name], self._due[party.name])

    def _emitted(self, party: Party, event: Event) -> None:
        self.world.note(party.name, f"{event.event} {event.fields.get('round', '')}")
        self._rounds.see(party.name, event)


class _Watching:
    """A party's eye on its messages; see `Watcher`."""

    def __init__(self, run: _Run, party: str) -> None:
        self.given = partial(run.given, party)
        self.delivered = run.delivered
