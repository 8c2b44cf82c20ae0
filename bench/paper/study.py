"""A study: the profile, the seeds and the runs; tuning vanilla; means over seeds.

Vanilla's learning rate is tuned before any method is compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean, stdev
from typing import Any

import celu
from bench.curves import Run
from bench.pair import REGIMES
from bench.paper.profiles import Profile, Task
from bench.paper.runs import RunCache, gather
from bench.paper.training import Train, to_run
from bench.rounds import best_rate

# The target is vanilla's best AUC within this share of the rounds that it needs for its overall
# best. The overall best is a peak of noise, which a method that overfits sooner may never reach.
TARGET_SHARE = 0.7


@dataclass
class Study:
    """The profile, the seeds and the runs."""

    profile: Profile
    seeds: tuple[int, ...]
    runs: RunCache
    failures: list[str] = field(default_factory=list)  # a sentence for each run with NaN or Inf

    def train(
        self, wanted: Iterable[Train], seeds: Sequence[int] | None = None
    ) -> dict[Train, list[Run]]:
        """The runs of each spec, one for each seed (by default the study's), in their order."""
        seeds = self.seeds if seeds is None else seeds
        wanted = list(dict.fromkeys(wanted))
        done = self.runs.run((train, seed) for train in wanted for seed in seeds)
        self.failures += [
            f"{train}, seed {seed}, ended early: {values['ended']}."
            for (train, seed), values in done.items()
            if values["ended"]
        ]
        return {train: [to_run(done[train, seed]) for seed in seeds] for train in wanted}


@dataclass(frozen=True)
class Baseline:
    """Tuned vanilla in a regime, and the target: an AUC that it reached with every seed."""

    task: Task
    vanilla: Train
    target: float
    grid: dict[float, float | None]  # by rate: rounds to `tuned_for` with the first seed
    tuned_for: float  # an AUC
    runs: list[Run]

    def with_method(self, method: celu.Method, **more: Any) -> Train:
        """Another method with the same optimizer, trained until it reaches the target."""
        return replace(self.vanilla, method=method, target=self.target, **more)

    @property
    def description(self) -> str:
        """How it was tuned, for the notes under a result."""
        regime = REGIMES[self.vanilla.regime]
        grid = ", ".join(
            f"{rate:g}: {'never' if rounds is None else f'{rounds:.0f}'}"
            for rate, rounds in self.grid.items()
        )
        edge = self.vanilla.lr in (min(self.grid), max(self.grid))
        return (
            f"{regime.name.title()} regime: AdaGrad with initial accumulator "
            f"{regime.accumulator:g}, learning rate {self.vanilla.lr:g}, tuned for vanilla with "
            f"the first seed: the smallest within 10% of the fewest rounds to AUC "
            f"{self.tuned_for:.4f} ({grid}{'; it is at an end of the grid' if edge else ''}). "
            f"Target: AUC {self.target:.4f}, which vanilla reached with every seed within "
            f"{TARGET_SHARE:.0%} of the rounds to its best AUC."
        )


def tune(study: Study, task: str, regime: str) -> Baseline:
    """Vanilla at its best rate: the fewest rounds to the highest AUC that any rate's target has."""
    specs = [Train(task, regime, lr) for lr in study.profile.rates[regime]]
    first = study.seeds[0]
    done = study.runs.run((train, first) for train in specs)
    by_rate = {train.lr: to_run(done[train, first]) for train in specs}
    auc = max(run.best_by_share(TARGET_SHARE) for run in by_rate.values())
    grid = {lr: rounds_to([run], auc).mean for lr, run in by_rate.items()}
    vanilla = Train(task, regime, best_rate(grid)[0])
    runs = study.train([vanilla])[vanilla]
    reached = min(run.best_by_share(TARGET_SHARE) for run in runs)
    target = math.floor(reached * 1e4) / 1e4
    return Baseline(study.profile.tasks[task], vanilla, target, grid, auc, runs)


def tune_all(study: Study, task: str, regimes: Iterable[str]) -> dict[str, Baseline]:
    """Tuned vanilla in each regime."""
    regimes = list(regimes)
    baselines = gather(partial(tune, study, task, regime) for regime in regimes)
    return dict(zip(regimes, baselines, strict=True))


@dataclass(frozen=True)
class Spread:
    """Mean and deviation over seeds; None unless every seed has a value."""

    mean: float | None
    deviation: float | None
    by_seed: list[float | None]

    @staticmethod
    def of(values: Sequence[float | None]) -> Spread:
        """Compute the mean and the sample standard deviation."""
        known = [value for value in values if value is not None]
        complete = bool(known) and len(known) == len(values)
        return Spread(
            mean(known) if complete else None,
            stdev(known) if complete and len(known) > 1 else None,
            list(values),
        )

    @property
    def error(self) -> float | None:
        """The standard error of the mean."""
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.by_seed))

    def describe(self, unit: str) -> str:
        """The mean; or how many seeds have a value, if not all do."""
        if self.mean is not None:
            return f"{self.mean:,.0f} {unit}"
        known = sum(value is not None for value in self.by_seed)
        return f"by {known} of {len(self.by_seed)} seeds" if known else "not reached"


def rounds_to(runs: Sequence[Run], target: float) -> Spread:
    """Rounds to a target AUC over seeds."""
    reached = [run.reached(target) for run in runs]
    return Spread.of([None if r is None else r[0] for r in reached])


def seconds_to(runs: Sequence[Run], target: float) -> Spread:
    """Virtual seconds to a target AUC over seeds."""
    reached = [run.reached(target) for run in runs]
    return Spread.of([None if r is None else r[1] for r in reached])


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b; None if either is None or b is zero."""
    return None if a is None or not b else a / b
