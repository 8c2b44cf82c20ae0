"""Part `time`: the paper's figure 6, AUC over time on a link of 300 Mbps and 40 ms round trip.

In virtual time; see `bench.pair` for how a small shape stands in for the paper's. All methods use
the learning rate that is best for vanilla, as in the paper. If that is close to the highest rate at
which vanilla is stable, local steps diverge with it; so FedBCD and CELU are also shown at the best
of that rate and the next lower ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

import celu
from bench.curves import Run
from bench.pair import VANILLA
from bench.paper.claims import compare_with_paper
from bench.paper.drawing import (
    BLACK,
    BLUE,
    ORANGE,
    SKY,
    VERMILLION,
    Drawing,
    curve_series,
    draw_legend,
    draw_series,
    frame_curves,
    new_figure,
)
from bench.paper.runs import gather
from bench.paper.study import (
    Baseline,
    Spread,
    Study,
    ratio,
    seconds_to,
    tune,
)
from bench.paper.training import CELU, FEDBCD, Train, to_run
from bench.report import BenchResult
from bench.rounds import best_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METHODS = {
    "vanilla": (VANILLA, BLACK),
    "FedBCD R=5": (FEDBCD, ORANGE),
    "FedBCD R=8": (celu.Method(W=1, R=8, weighting="none"), VERMILLION),
    "CELU R=5": (CELU, SKY),
    "CELU R=8": (celu.Method(W=5, R=8, xi=60, weighting="cosine"), BLUE),
}
_TUNED = {"FedBCD R=5": "fedbcd", "CELU R=5": "celu"}  # with their names in `figures`
_NUM_LOWER_RATES = 2  # below vanilla's, tried with each method of _TUNED
# The paper's speed-ups over vanilla: one for each dataset, the better of R = 5 and R = 8.
_PAPER = {"criteo": 2.47, "avazu": 1.31}
ByName = dict[str, list[Run]]
Tuned = dict[str, tuple[Train, list[Run]]]
_TITLES = {
    "criteo": "WDL, Criteo's shape",
    "avazu": "DSSM, Avazu's shape",
    "flights": "WDL, flights",
}


def measure(study: Study) -> tuple[BenchResult, list[Drawing]]:
    """Tune vanilla on each dataset, then run every method for the same number of rounds."""
    result = BenchResult("paper time", list(study.seeds), profile=study.profile.name)
    found: dict[str, tuple[Baseline, ByName]] = {}
    done = gather(partial(_train, study, task) for task in _TITLES)
    for task, (baseline, runs, tuned) in zip(_TITLES, done, strict=True):
        found[task] = baseline, runs
        _report(result, task, baseline, runs)
        for name, (train, own) in tuned.items():
            vanilla, spread = (seconds_to(r, baseline.target) for r in (runs["vanilla"], own))
            row = _row(task, f"{name}, own rate {train.lr:g}", vanilla, spread)
            result.rows.append(row)
            result.figures[f"{task}_{_TUNED[name]}_own_rate_speedup"] = row["speed-up"]
        result.notes += [f"{task}: {baseline.task.description}.", f"{task}: {baseline.description}"]
    result.notes += [
        "Seconds are virtual: a link on which a message takes as long as the paper's 4 MiB at 300 "
        "Mbps, 20 ms one way; both parties together compute a round of vanilla in 5.5 ms, as on "
        "one H200 with the paper's shape, and other work in proportion. Evaluations take no time. "
        "Own rate: the best, with the first seed, of vanilla's rate and the "
        f"{_NUM_LOWER_RATES} next lower ones of the grid.",
        *(
            compare_with_paper(
                f"{task}_celu_speedup", result.figures[f"{task}_celu_speedup"], paper
            )
            for task, paper in _PAPER.items()
        ),
    ]
    return result, [Drawing("auc", lambda: _draw(found))]


def _train(study: Study, task: str) -> tuple[Baseline, ByName, Tuned]:
    """All methods at vanilla's rate, and those of _TUNED also at their own best rate."""
    baseline = tune(study, task, "paper")
    trains = {name: replace(baseline.vanilla, method=m) for name, (m, _) in _METHODS.items()}
    done = study.train(trains.values())
    runs = {name: done[train] for name, train in trains.items()}
    return baseline, runs, _tuned(study, baseline, runs)


def _tuned(study: Study, baseline: Baseline, runs: ByName) -> Tuned:
    """Each method of _TUNED at its own best rate, trained until it reaches vanilla's target."""
    own, first = baseline.vanilla.lr, study.seeds[0]
    rates = [lr for lr in study.profile.rates["paper"] if lr < own][-_NUM_LOWER_RATES:]
    specs = {
        (name, lr): replace(baseline.with_method(_METHODS[name][0]), lr=lr)
        for name in _TUNED
        for lr in rates
    }
    done = study.runs.run((train, first) for train in specs.values())
    chosen = {}
    for name in _TUNED:
        grid = {lr: to_run(done[specs[name, lr], first]).reached(baseline.target) for lr in rates}
        grid[own] = runs[name][0].reached(baseline.target)
        rate = best_rate({lr: None if at is None else at[0] for lr, at in grid.items()})[0]
        chosen[name] = specs.get((name, rate), baseline.with_method(_METHODS[name][0]))
    lower = study.train(train for train in chosen.values() if train.lr < own)
    return {name: (train, lower.get(train, runs[name])) for name, train in chosen.items()}


def _row(task: str, method: str, vanilla: Spread, spread: Spread) -> dict[str, Any]:
    return {
        "task": task,
        "method": method,
        "seconds": spread.mean,
        "deviation": spread.deviation,
        "speed-up": ratio(vanilla.mean, spread.mean),
        "by seed": [None if s is None else round(s, 1) for s in spread.by_seed],
    }


def _report(result: BenchResult, task: str, baseline: Baseline, runs: ByName) -> None:
    seconds = {name: seconds_to(seed_runs, baseline.target) for name, seed_runs in runs.items()}
    for name, spread in seconds.items():
        at_end = mean(run.curve[-1][2] if run.curve else 0.5 for run in runs[name])
        row = _row(task, name, seconds["vanilla"], spread)
        result.rows.append({**row, "AUC at the end": at_end})
    speedups = {n: ratio(seconds["vanilla"].mean, spread.mean) for n, spread in seconds.items()}
    for method in ("CELU", "FedBCD"):
        best = [s for s in (speedups[f"{method} R=5"], speedups[f"{method} R=8"]) if s is not None]
        result.figures[f"{task}_{method.lower()}_speedup"] = max(best, default=None)


def _draw(found: dict[str, tuple[Baseline, ByName]]) -> Figure:
    figure, (row,) = new_figure(1, len(found), 10.5, 3.9)
    for axes, (task, (baseline, runs)) in zip(row, found.items(), strict=True):
        series = []
        for name, (_, colour) in _METHODS.items():
            text = seconds_to(runs[name], baseline.target).describe("s")
            series.append(curve_series(runs[name], f"{name}: {text}", colour, over="seconds"))
        draw_series(axes, series)
        draw_legend(axes, series)
        frame_curves(axes, series, baseline.target)
        axes.set_title(_TITLES[task])
        axes.set_xlabel("seconds (virtual)")
    row[0].set_ylabel("held-out AUC")
    return figure
