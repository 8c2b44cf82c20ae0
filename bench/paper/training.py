"""One training run over a WAN in virtual time, as a `RunSpec`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import celu
from bench.curves import Point, Run
from bench.pair import (
    GPU_ROUND_S,
    REGIMES,
    VANILLA,
    Pair,
    Regime,
    Shape,
    measure_compute_s,
    pair_job,
    simulate_pair,
    split_hosts,
    timer_for,
)
from bench.paper.experiments import EXPERIMENTS
from bench.paper.profiles import Task
from bench.paper.runs import Values
from bench.paper.timing import Stages, seconds_by_round
from celu.errors import NonFiniteError
from celu.events import Callback, Evaluated, Event, RoundDone, TuningChosen

CELU = celu.Method(W=5, R=5, xi=60, weighting="cosine")
CONSECUTIVE = celu.Method(
    W=1, R=5, xi=60, weighting="cosine"
)  # the paper's consecutive sampling: the newest batch
FEDBCD = celu.Method(W=1, R=5, weighting="none")
GUEST_ONLY = celu.Method(W=5, R={"guest": 5, "host": 1}, xi=60, weighting="cosine")
COMPENSATED = celu.Method(W=5, R=5, xi=60, weighting="compensated")
TOGETHER = celu.Method(W=5, R={"guest": 5, "host": 1}, xi=60, depth=4, weighting="cosine")


@dataclass(frozen=True)
class Train:
    """Train with a method until the task's rounds are done or the target is reached."""

    kind: ClassVar[str] = "Train"
    task: str
    regime: str
    lr: float
    method: celu.Method = VANILLA
    codec: str | None = None
    hosts: int = 1
    target: float | None = None
    similarities: bool = False  # whether to record the quantiles of the cosine similarities

    def __str__(self) -> str:
        """A line for the log."""
        given = self.method.model_dump(exclude_unset=True).items()
        method = ", ".join(f"{name} {_short(value)}" for name, value in given)
        more = f", {self.codec}" if self.codec else ""
        more += f", {self.hosts} hosts" if self.hosts > 1 else ""
        return f"{self.task}, {self.regime}, lr {self.lr:g}, {method}{more}"

    @property
    def cost(self) -> float:
        """See `RunSpec`: updates in a round."""
        R = self.method.model_dump()["R"]
        return float(R["guest"] + R["host"]) + (4 if self.method.auto else 0) + self.hosts - 1

    def execute(self, task: Task, pair: Pair, seed: int) -> Values:
        """See `RunSpec`. A run that ends early with NaN or Inf returns its curve up to there."""
        run = self.prepare(task, pair, seed)
        recorder = _Recorder(run.job, self.similarities)
        parties = (run.job.guest, *run.job.hosts)
        ended = run.train({name: recorder.callback_for(name) for name in parties})
        return {
            "curve": recorder.curve_without_evaluations(run),
            "choices": recorder.choices,
            "quantiles": recorder.quantiles,
            "ended": ended,
        }

    def prepare(self, task: Task, pair: Pair, seed: int) -> PreparedRun:
        """Measure this machine and build the job; train nothing."""
        shape, regime = task.shape, REGIMES[self.regime]
        # Measured for every run: the load on a shared GPU changes.
        speed = measure_compute_s(pair, shape) / GPU_ROUND_S
        parts = split_hosts(pair, self.hosts)
        job = pair_job(
            parts,
            shape,
            seed,
            regime.optimizer(self.lr),
            self.method,
            target=self.target,
            codec=self.codec,
        )
        return PreparedRun(pair, parts, shape, regime, job, speed)


@dataclass(frozen=True)
class Experiment(Train):
    """A training run with a change to the engine, by its name in `EXPERIMENTS`."""

    kind: ClassVar[str] = "Experiment"
    experiment: str = ""

    def __str__(self) -> str:
        """A line for the log."""
        return f"{super().__str__()}, {self.experiment}"

    def execute(self, task: Task, pair: Pair, seed: int) -> Values:
        """See `RunSpec`."""
        with EXPERIMENTS[self.experiment]():
            return super().execute(task, pair, seed)


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to train."""

    whole: Pair  # with one host, whose speed is measured
    pair: Pair
    shape: Shape
    regime: Regime
    job: celu.Job
    speed: float

    def train(self, callbacks: dict[str, Callback]) -> str:
        """Train with one callback per party. Return the message of a NaN or Inf error, or ""."""
        hosts = {name: [callbacks[name]] for name in self.job.hosts}
        try:
            self.simulate(self.job, callbacks[self.job.guest], host_callbacks=hosts)
        except NonFiniteError as error:
            return str(error)
        return ""

    def calibrated(self) -> PreparedRun:
        """The same with the machine's speed as it is now."""
        speed = measure_compute_s(self.whole, self.shape) / GPU_ROUND_S
        return replace(self, speed=speed)

    def simulate(self, job: celu.Job, callback: Callback, **options: Any) -> None:
        """Train new modules with a job, in virtual time."""
        options |= {"callbacks": [callback], "timer": timer_for(self.shape)}
        options |= {"link": self.shape.link, "speed": self.speed}
        simulate_pair(self.pair, self.shape, self.regime, job, **options)


class _Recorder:
    """Records the events that the study needs."""

    def __init__(self, job: celu.Job, similarities: bool) -> None:
        self._similarities = similarities
        self._stages = Stages(job)
        # Rounds done, rounds executed (those rolled back included), AUC.
        self._evaluations: list[tuple[int, int, float]] = []
        self.choices: list[str] = []
        self.quantiles: dict[str, list[list[float]]] = {}  # by party: round, quantiles

    def callback_for(self, party: str) -> Callback:
        """A callback for the events of this party."""

        def record(event: Event) -> None:
            if isinstance(event, Evaluated):
                executed = self._stages.executed(event.round)
                self._evaluations.append((event.round, executed, event.metrics["auc"]))
            elif isinstance(event, TuningChosen):
                self._stages.add(event)
                self.choices.append(f"from round {event.round}: {event.reason}")
            elif (
                isinstance(event, RoundDone)
                and self._similarities
                and event.similarity_quantiles is not None
            ):
                row = [event.round, *event.similarity_quantiles]
                self.quantiles.setdefault(party, []).append(row)

        return record

    def curve_without_evaluations(self, run: PreparedRun) -> list[Point]:
        """Rounds, AUC, and the seconds that training alone takes."""
        if not self._evaluations:
            return []
        run = run.calibrated()  # other processes on a GPU may have come and gone
        seconds = seconds_by_round(self._stages, self._evaluations[-1][1], run.simulate)
        return [(done, round(seconds(n), 4), auc) for done, n, auc in self._evaluations]


def _short(value: Any) -> str:
    """A setting as short text: one value if both roles have the same."""
    by_role = list(value.values()) if isinstance(value, dict) else [value]
    return "/".join(f"{v:g}" if isinstance(v, float) else str(v) for v in dict.fromkeys(by_role))


def to_run(values: Values) -> Run:
    """The curve of a training run, and the choices that changed a setting."""
    choices = [c for c in values["choices"] if not c.endswith((": unchanged", ": as before"))]
    return Run([(done, seconds, auc) for done, seconds, auc in values["curve"]], choices)
