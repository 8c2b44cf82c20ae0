"""What every part has to hand, and how vanilla is tuned before anything is set against it."""

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
from bench.paper.runs import Runs, together
from bench.paper.training import Train, run_of
from bench.rounds import best

# Where on vanilla's way to its best AUC the target lies. Not at the best itself: that is a peak of
# noise, and what overfits sooner may pass below it at any speed.
TARGET_SHARE = 0.7


@dataclass
class Study:
    """The profile, the seeds, and what does the runs."""

    profile: Profile
    seeds: tuple[int, ...]
    runs: Runs
    ended: list[str] = field(default_factory=list)  # runs that ended in NaN or Inf, in words

    def train(self, wanted: Iterable[Train]) -> dict[Train, list[Run]]:
        """Runs of each with every seed, in the order of the seeds."""
        wanted = list(dict.fromkeys(wanted))
        done = self.runs.run((train, seed) for train in wanted for seed in self.seeds)
        self.ended += [
            f"{train}, seed {seed}, ended early: {values['ended']}."
            for (train, seed), values in done.items()
            if values["ended"]
        ]
        return {train: [run_of(done[train, seed]) for seed in self.seeds] for train in wanted}


@dataclass(frozen=True)
class Baseline:
    """Vanilla at its best in a regime, and the AUC that it reached with every seed."""

    task: Task
    vanilla: Train
    target: float
    grid: dict[float, float | None]  # by rate: rounds with the first seed to the AUC tuned for
    tuned_for: float
    runs: list[Run]

    def of(self, method: celu.Method, **more: Any) -> Train:
        """Another method with the same optimizer, until it reaches the target."""
        return replace(self.vanilla, method=method, target=self.target, **more)

    @property
    def words(self) -> str:
        """How it was tuned."""
        regime = REGIMES[self.vanilla.regime]
        grid = ", ".join(
            f"{rate:g}: {'never' if rounds is None else f'{rounds:.0f}'}"
            for rate, rounds in self.grid.items()
        )
        edge = self.vanilla.lr in (min(self.grid), max(self.grid))
        return (
            f"{regime.name.title()} regime: AdaGrad from {regime.accumulator:g}, rate "
            f"{self.vanilla.lr:g}, tuned for vanilla with the first seed: the smallest within 10% "
            f"of the fewest rounds to AUC {self.tuned_for:.4f} ({grid}"
            f"{'; it is at an end of the grid' if edge else ''}). Target: AUC {self.target:.4f}, "
            f"which vanilla had with every seed at {TARGET_SHARE:.0%} of the way to its best."
        )


def tune(study: Study, task: str, regime: str) -> Baseline:
    """Vanilla at its best rate: to the highest AUC of any where the target would lie."""
    what = study.profile.tasks[task]
    tries = [Train(task, regime, lr) for lr in study.profile.rates[regime]]
    first = study.seeds[0]
    done = study.runs.run((train, first) for train in tries)
    tried = {train.lr: run_of(done[train, first]) for train in tries}
    auc = max(run.on_the_way(TARGET_SHARE) for run in tried.values())
    grid = {lr: rounds_to([run], auc).mean for lr, run in tried.items()}
    vanilla = Train(task, regime, best(grid)[0])
    runs = study.train([vanilla])[vanilla]
    reached = min(run.on_the_way(TARGET_SHARE) for run in runs)
    return Baseline(what, vanilla, math.floor(reached * 1e4) / 1e4, grid, auc, runs)


def tune_all(study: Study, task: str, regimes: Iterable[str]) -> dict[str, Baseline]:
    """Vanilla at its best in each regime."""
    regimes = list(regimes)
    baselines = together(partial(tune, study, task, regime) for regime in regimes)
    return dict(zip(regimes, baselines, strict=True))


@dataclass(frozen=True)
class Spread:
    """A number over seeds; none where a seed has none."""

    mean: float | None
    deviation: float | None
    by_seed: list[float | None]

    @staticmethod
    def of(values: Sequence[float | None]) -> Spread:
        """Mean and sample deviation."""
        known = [value for value in values if value is not None]
        complete = bool(known) and len(known) == len(values)
        return Spread(
            mean(known) if complete else None,
            stdev(known) if complete and len(known) > 1 else None,
            list(values),
        )

    def told(self, unit: str) -> str:
        """In a word or two: the mean, or that no seed has one, or how many have."""
        if self.mean is not None:
            return f"{self.mean:,.0f} {unit}"
        known = sum(value is not None for value in self.by_seed)
        return f"by {known} of {len(self.by_seed)} seeds" if known else "not reached"


def rounds_to(runs: Sequence[Run], target: float) -> Spread:
    """Rounds to a target over seeds."""
    reached = [run.reached(target) for run in runs]
    return Spread.of([None if r is None else r[0] for r in reached])


def seconds_to(runs: Sequence[Run], target: float) -> Spread:
    """Virtual seconds to a target over seeds."""
    reached = [run.reached(target) for run in runs]
    return Spread.of([None if r is None else r[1] for r in reached])


def ratio(a: float | None, b: float | None) -> float | None:
    """One over the other; none where either is, or there is nothing to divide by."""
    return None if a is None or not b else a / b
