"""One training run over a WAN in virtual time, as a piece of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import celu
from bench.curves import Run
from bench.pair import (
    GPU_ROUND_S,
    REGIMES,
    VANILLA,
    Pair,
    Regime,
    Shape,
    compute_s,
    pair_job,
    simulate_pair,
    timer_of,
    with_hosts,
)
from bench.paper.profiles import Task
from bench.paper.runs import Values
from celu.errors import NonFiniteError
from celu.events import Callback, Evaluated, Event, RoundDone, TuningChosen

CELU = celu.Method(W=5, R=5, xi=60)
CONSECUTIVE = celu.Method(W=1, R=5, xi=60)
FEDBCD = celu.Method(W=1, R=5, weighting="none")
GUEST_ONLY = celu.Method(W=5, R={"guest": 5, "host": 1}, xi=60)
TOGETHER = celu.Method(W=5, R={"guest": 5, "host": 1}, xi=60, depth=4)


@dataclass(frozen=True)
class Train:
    """Train under a method until the task's rounds are done, or a target is reached."""

    task: str
    regime: str
    lr: float
    method: celu.Method = VANILLA
    codec: str | None = None
    hosts: int = 1
    target: float | None = None
    similarities: bool = False  # whether the quantiles of cosines are kept

    def __str__(self) -> str:
        """For a reader of the screen."""
        given = self.method.model_dump(exclude_unset=True).items()
        written = ", ".join(f"{name} {_short(value)}" for name, value in given)
        more = f", {self.codec}" if self.codec else ""
        more += f", {self.hosts} hosts" if self.hosts > 1 else ""
        return f"{self.task}, {self.regime}, lr {self.lr:g}, {written}{more}"

    @property
    def cost(self) -> float:
        """See `Work`: updates a round."""
        R = self.method.model_dump()["R"]
        return float(R["guest"] + R["host"]) + (4 if self.method.auto else 0) + self.hosts - 1

    def perform(self, task: Task, pair: Pair, seed: int) -> Values:
        """See `Work`. NaN or Inf ends a run early; how far it got is told."""
        run = self.prepare(task, pair, seed)
        seen = _Seen(self.similarities)
        ended = run.go({name: seen.by(name) for name in (run.job.guest, *run.job.hosts)})
        return {
            "curve": seen.curve,
            "choices": seen.choices,
            "quantiles": seen.quantiles,
            "ended": ended,
        }

    def prepare(self, task: Task, pair: Pair, seed: int) -> Prepared:
        """All that the run is, but that nothing has been trained."""
        shape, regime = task.shape, REGIMES[self.regime]
        # Measured anew for every run, as others may share the accelerator by now.
        speed = compute_s(pair, shape) / GPU_ROUND_S
        pair = with_hosts(pair, self.hosts)
        job = pair_job(
            pair,
            shape,
            seed,
            regime.optimizer(self.lr),
            self.method,
            target=self.target,
            codec=self.codec,
        )
        return Prepared(pair, shape, regime, job, speed)


@dataclass(frozen=True)
class Prepared:
    """A run that can begin."""

    pair: Pair
    shape: Shape
    regime: Regime
    job: celu.Job
    speed: float

    def go(self, listeners: dict[str, Callback]) -> str:
        """Train, with a listener a party; the error's words where NaN or Inf ends it, else none."""
        options: dict[str, Any] = {
            "callbacks": [listeners[self.job.guest]],
            "host_callbacks": {name: [listeners[name]] for name in self.job.hosts},
            "link": self.shape.line,
            "speed": self.speed,
            "timer": timer_of(self.shape),
        }
        try:
            simulate_pair(self.pair, self.shape, self.regime, self.job, **options)
        except NonFiniteError as error:
            return str(error)
        return ""


class _Seen:
    """What a run tells of itself, as far as it is kept."""

    def __init__(self, similarities: bool) -> None:
        self._similarities = similarities
        self.curve: list[tuple[int, float, float]] = []
        self.choices: list[str] = []
        self.quantiles: dict[str, list[list[float]]] = {}  # by party: round, quantiles

    def by(self, party: str) -> Callback:
        """What listens to a party."""

        def note(event: Event) -> None:
            if isinstance(event, Evaluated):
                seconds = event.seconds - event.evaluating_s
                self.curve.append((event.round, round(seconds, 4), event.metrics["auc"]))
            elif isinstance(event, TuningChosen):
                self.choices.append(f"from round {event.round}: {event.reason}")
            elif isinstance(event, RoundDone) and self._similarities:
                if event.similarity_quantiles is not None:
                    row = [event.round, *event.similarity_quantiles]
                    self.quantiles.setdefault(party, []).append(row)

        return note


def _short(value: Any) -> str:
    """A setting in few letters; one that is the same for both roles once."""
    by_role = list(value.values()) if isinstance(value, dict) else [value]
    return "/".join(f"{v:g}" if isinstance(v, float) else str(v) for v in dict.fromkeys(by_role))


def run_of(values: Values) -> Run:
    """The curve of a training run, and its choices where something was chosen anew."""
    choices = [c for c in values["choices"] if not c.endswith((": unchanged", ": as before"))]
    return Run([(done, seconds, auc) for done, seconds, auc in values["curve"]], choices)
