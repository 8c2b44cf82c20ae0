"""One run under the nemesis, from its seed to its verdict."""

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
from celu.result import Result
from celu.simulation import simulate
from celu.transport.message import Message
from celu.transport.wire import PIECE_BYTES
from chaos.checks import (
    DeliveryCheck,
    FinalState,
    InvariantViolated,
    RoundCheck,
    check_durable,
    check_error,
    check_final_state,
    check_log,
    check_repeated,
    check_retained,
    read_final_state,
)
from chaos.disk import SimDisk
from chaos.nemesis import FAULTS_END_S, KINDS, Fault, Nemesis, Scale, draw
from chaos.network import Network
from chaos.operators import Operators
from chaos.party_process import Party
from chaos.scenarios import NUM_SCENARIOS, Scenario, scenario
from chaos.simulator import Simulator

# Mostly the real size, sometimes so small that even a small message is split.
_PIECE_BYTES = (*[PIECE_BYTES] * 5, 100)
# How long after the last fault a run must be done: a few of the longest timeouts.
_TIME_TO_END_S = 600.0


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run."""

    seed: int
    problem: str | None  # None: all invariants held
    faults: Counter[str]  # injected, by kind
    ends: Counter[str]  # how processes ended
    seconds: float  # virtual
    trace: list[str] = field(default_factory=list)


def run_seed(
    seed: int,
    *,
    kinds: Sequence[str] = KINDS,
    traced: bool = False,
    make_disk: Callable[[], SimDisk] = SimDisk,
) -> Verdict:
    """Run a seed with faults of these kinds. Raises nothing: see the verdict's problem."""
    rng = random.Random(seed)  # noqa: S311 - must be reproducible
    chosen = scenario(rng.randrange(NUM_SCENARIOS))
    expected, scale = run_without_faults(chosen.number)
    faults = draw(rng, chosen.names, scale, kinds)
    return Run(chosen, seed, faults, expected, traced=traced, make_disk=make_disk).verdict()


@cache
def run_without_faults(number: int) -> tuple[dict[str, FinalState], Scale]:
    """The final state of each party in a scenario without faults, and the length of the run.

    Raises InvariantViolated unless an in-memory simulation ends with the same weights.
    """
    chosen = scenario(number)
    run = Run(chosen, number, [], None)
    verdict = run.verdict()
    if verdict.problem is not None:
        raise InvariantViolated(f"scenario {number} fails without faults: {verdict.problem}")
    guest, hosts = chosen.guest(), {name: chosen.host(name) for name in chosen.job.hosts}
    simulate(chosen.job, guest, hosts)
    modules = {chosen.job.guest: {"top": guest.top, "bottom": guest.bottom}}
    modules |= {name: {"bottom": host.bottom} for name, host in hosts.items()}
    for party, own in modules.items():
        tensors, _ = run.final_states[party]
        for part, module in own.items():
            assert module is not None  # all parties of all scenarios have a bottom
            for name, tensor in module.state_dict().items():
                if not torch.equal(tensors[f"weights.{part}.{name}"], tensor):
                    raise InvariantViolated(
                        f"scenario {number}: {party}'s weights differ from those in memory"
                    )
    sends, operations = run.nemesis.max_count("sends"), run.nemesis.max_count("operations")
    return run.final_states, Scale(verdict.seconds, sends, operations)


class Run:
    """All parties of a scenario in one simulator."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        faults: Sequence[Fault],
        expected: dict[str, FinalState] | None,
        *,
        traced: bool = False,
        make_disk: Callable[[], SimDisk] = SimDisk,
    ) -> None:
        self.simulator = Simulator(seed, traced=traced)
        self.final_states: dict[str, FinalState] = {}
        self._seed = seed
        self._expected = expected
        self._ends: Counter[str] = Counter()
        self._round_check = RoundCheck()
        self._delivery_check = DeliveryCheck()
        rng, network = self.simulator.rng, Network(self.simulator)
        hosts_dial = rng.random() < 0.5
        piece_bytes = rng.choice(_PIECE_BYTES)
        inner_tls = rng.random() < 0.5
        delayed_writes = rng.random() < 0.5
        self.parties = {
            name: Party(
                name,
                scenario,
                self.simulator,
                network,
                _Observer(self, name),
                self._on_end,
                self._on_event,
                dials=hosts_dial == (name != scenario.job.guest),
                piece_bytes=piece_bytes,
                inner_tls=inner_tls,
                delayed_writes=delayed_writes,
                disk=make_disk(),
            )
            for name in scenario.names
        }
        self._operators = Operators(self.parties)
        self.nemesis = Nemesis(faults, self.simulator, network, self.parties)
        who, tls = "hosts dial" if hosts_dial else "guest dials", "inner" if inner_tls else "direct"
        self.simulator.log("", f"scenario {scenario.number}, {who}, {tls} TLS")
        for fault in faults:
            self.simulator.log("", f"planned: {fault}")
        for party in self.parties.values():
            self.simulator.after(rng.uniform(0.0, 1.0), party.start)

    def verdict(self) -> Verdict:
        """Run the simulation to its end."""
        problem = None
        try:
            if not self.simulator.run(self._is_done, FAULTS_END_S + _TIME_TO_END_S):
                names = ", ".join(name for name, p in self.parties.items() if not p.is_done)
                problem = f"hangs: {names} not done {_TIME_TO_END_S:g} s after the last fault"
        except InvariantViolated as error:
            problem = str(error)
        except Exception:  # any other exception of a party is a failure as well
            problem = f"unexpected exception: {traceback.format_exc()}"
        finally:
            for party in self.parties.values():
                if party.running is not None:
                    party.running.abandon()
        return Verdict(
            self._seed,
            problem,
            self.nemesis.injected,
            self._ends,
            self.simulator.now,
            self.simulator.trace or [],
        )

    def on_sent(self, party: str, token: str, message: Message) -> None:
        """A party sends a message; raises Killed if a fault kills it at this send."""
        self._delivery_check.on_sent(token, message)
        self.nemesis.before_send(party)

    def on_delivered(self, token: str, message: Message) -> None:
        """A message is delivered."""
        self._delivery_check.on_delivered(token, message)

    def _is_done(self) -> bool:
        return all(party.is_done for party in self.parties.values())

    def _on_end(self, party: Party, end: Result | CeluError | None) -> None:
        how = type(end).__name__
        if isinstance(end, Result):
            how = "done"
            party.is_done = True
        self._ends["killed" if end is None else how] += 1
        if "bit rot" not in self.nemesis.injected:
            check_durable(party)
        check_retained(party)
        if isinstance(end, CeluError):
            check_error(party.name, end, self.nemesis.injected)
            self._operators.on_error(end)
        elif end is not None:
            self._check_done(party, end)

    def _check_done(self, party: Party, result: Result) -> None:
        check_log(party)
        try:
            self.final_states[party.name] = read_final_state(party, result)
        except CheckpointError as error:
            if "bit rot" not in self.nemesis.injected:  # it may damage the last checkpoint, too
                raise InvariantViolated(
                    f"{party.name} is done without a last checkpoint"
                ) from error
            return
        if self._expected is not None:
            name = party.name
            check_final_state(name, self.final_states[name], self._expected[name])

    def _on_event(self, party: Party, event: Event) -> None:
        self.simulator.log(party.name, f"{event.event} {event.fields.get('round', '')}")
        self._round_check.on_event(party.name, event)
        check_repeated(party, event)
        check_retained(party)


class _Observer:
    """Observes one party's messages; see `MessageObserver`."""

    def __init__(self, run: Run, party: str) -> None:
        self.on_sent = partial(run.on_sent, party)
        self.on_delivered = run.on_delivered
