"""Part `auto`: `method = "auto"` against a table of fixed settings, on every dataset and regime.

The best fixed setting of a table is found only after every one of them was run; `auto` has one run.
"""

from __future__ import annotations

import math
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

import celu
from bench.curves import Run
from bench.paper.drawing import BLUE, VERMILLION, Dot, DotRow, Drawing, draw_dots, new_figure
from bench.paper.runs import gather
from bench.paper.study import Baseline, Spread, Study, ratio, rounds_to, seconds_to, tune
from bench.paper.training import Train
from bench.report import BenchResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASKS = ("criteo", "avazu", "flights", "clicks")
REGIMES = ("paper", "strong")
AUTO = celu.Method(auto=True)
Settings = dict[str, tuple[celu.Method, dict[str, Any]]]  # by name: the method, other settings
# Depth, R of guest and host, codec.
_WANTED = (
    *((depth, 1, 1, "4bit") for depth in (1, 2, 4)),
    *((6, *pair, "4bit") for pair in ((1, 1), (3, 1), (3, 3), (5, 5))),
    *((6, *pair, "2bit") for pair in ((1, 1), (3, 1), (5, 1), (1, 5), (3, 3), (5, 5))),
)


def _settings() -> Settings:
    settings: Settings = {}
    for depth, guest, host, codec in _WANTED:
        method = celu.Method(
            W=5, R={"guest": guest, "host": host}, depth=depth, weighting="compensated"
        )
        settings[f"R={guest}/{host}, depth {depth}, {codec}"] = (method, {"codec": codec})
    return settings


SETTINGS = _settings()
_BRIEF = ("R=1/1, depth 1, 4bit", "R=5/5, depth 6, 4bit")
Cell = tuple[str, str]  # task and regime
# By how much auto may end below vanilla. Where the seeds cannot tell, this many more decide: the
# mean of all of them is published, whatever it is.
MAX_LOST_AUC = 0.001
_MORE_SEEDS = 10


def measure(study: Study) -> tuple[BenchResult, list[Drawing]]:
    """Run every setting until it reaches vanilla's target, and `auto` for as long as vanilla.

    A brief study has one task and two settings.
    """
    brief = study.profile.brief
    tasks = TASKS[:1] if brief else TASKS
    settings = {name: SETTINGS[name] for name in _BRIEF} if brief else SETTINGS
    result = BenchResult("paper auto", list(study.seeds), profile=study.profile.name)
    cells = [(task, regime) for task in tasks for regime in REGIMES]
    tuned = gather(partial(tune, study, *cell) for cell in cells)
    baselines = dict(zip(cells, tuned, strict=True))
    specs: dict[tuple[Cell, str], Train] = {}
    for cell, baseline in baselines.items():
        for name, (method, more) in settings.items():
            specs[cell, name] = baseline.with_method(method, **more)
        # Without a target: its last AUC is compared with vanilla's.
        specs[cell, "auto"] = Train(*cell, baseline.vanilla.lr, AUTO)
    done = study.train(specs.values())
    shares: dict[Cell, float | None] = {}
    losses: dict[Cell, Spread] = {}
    for cell, baseline in baselines.items():
        runs = {name: done[specs[cell, name]] for name in (*settings, "auto")}
        shares[cell] = _report(result, cell, baseline, runs)
        losses[cell] = _lost_auc_of_enough_seeds(study, baseline, specs[cell, "auto"], runs["auto"])
        result.figures[f"auto_auc_less_vanilla_{'_'.join(cell)}"] = losses[cell].mean
        result.notes.append(f"{cell[0].title()}: {baseline.description}")
    known = [share for share in shares.values() if share is not None]
    result.figures["auto_over_best_by_hand"] = min(known) if len(known) == len(shares) else None
    worst = max(losses.values(), key=lambda loss: -math.inf if loss.mean is None else loss.mean)
    result.figures["auto_auc_less_vanilla_worst"] = worst.mean
    result.figures["auto_auc_less_vanilla_worst_error"] = worst.error
    result.figures["auto_auc_less_vanilla_worst_seeds"] = len(worst.by_seed)
    return result, [Drawing("seconds", lambda: _draw(baselines, done, specs))]


def lost_auc(theirs: list[Run], ours: list[Run]) -> Spread:
    """The last AUC of their runs less that of ours, seed by seed."""
    pairs = zip(theirs, ours, strict=True)
    return Spread.of([a.curve[-1][2] - b.curve[-1][2] for a, b in pairs])


def is_undecided(loss: Spread) -> bool:
    """Whether a loss of AUC may be above or below what is allowed, by its standard error."""
    if loss.mean is None or loss.error is None:
        return False
    return abs(loss.mean - MAX_LOST_AUC) < loss.error


def _lost_auc_of_enough_seeds(
    study: Study, baseline: Baseline, auto: Train, runs: list[Run]
) -> Spread:
    loss = lost_auc(baseline.runs, runs)
    if study.profile.brief or not is_undecided(loss):
        return loss
    seeds = range(max(study.seeds) + 1, max(study.seeds) + 1 + _MORE_SEEDS)
    more = study.train([baseline.vanilla, auto], seeds)
    return lost_auc([*baseline.runs, *more[baseline.vanilla]], [*runs, *more[auto]])


def _report(
    result: BenchResult, cell: Cell, baseline: Baseline, runs: dict[str, list[Run]]
) -> float | None:
    """Add the rows and the figures of a cell; return the best setting's seconds over auto's."""
    vanilla = seconds_to(baseline.runs, baseline.target).mean
    for name, found in {"vanilla": baseline.runs, **runs}.items():
        seconds = seconds_to(found, baseline.target)
        result.rows.append(
            {
                "data": cell[0],
                "optimizer": f"{cell[1]}, lr {baseline.vanilla.lr:g}",
                "setting": name,
                "rounds": rounds_to(found, baseline.target).mean,
                "seconds": seconds.mean,
                "speed-up": ratio(vanilla, seconds.mean),
                "seconds by seed": [None if s is None else round(s, 2) for s in seconds.by_seed],
                "last AUC": mean(run.curve[-1][2] for run in found),
            }
        )
    by_setting = {
        name: seconds_to(of_setting, baseline.target).mean
        for name, of_setting in runs.items()
        if name != "auto"
    }
    reached = {name: seconds for name, seconds in by_setting.items() if seconds is not None}
    auto = seconds_to(runs["auto"], baseline.target).mean
    where = "_".join(cell)
    share = ratio(min(reached.values()), auto) if reached else None
    result.figures[f"auto_over_best_by_hand_{where}"] = share
    if reached:
        best = min(reached, key=reached.__getitem__)
        result.notes.append(f"{cell[0].title()}, {cell[1]} regime: the best setting is {best}.")
    choices = "; ".join(runs["auto"][0].choices)
    result.notes.append(f"auto there, with the first seed: {choices}.")
    return share


def _draw(
    baselines: dict[Cell, Baseline],
    done: dict[Train, list[Run]],
    specs: dict[tuple[Cell, str], Train],
) -> Figure:
    """Speed-up over vanilla: each setting and auto, one group a cell."""
    figure, ((axes,),) = new_figure(1, 1, 7.5, 9.0)
    rows = []
    for cell, baseline in baselines.items():
        vanilla = seconds_to(baseline.runs, baseline.target).mean
        dots = []
        for name in (name for of, name in specs if of == cell):
            seconds = seconds_to(done[specs[cell, name]], baseline.target)
            own = name == "auto"
            colour, marker = (VERMILLION, "s") if own else (BLUE, "o")
            if seconds.mean is not None or own:
                text = seconds.describe("s") if own else ""
                dots.append(
                    Dot(ratio(vanilla, seconds.mean), None, colour, marker=marker, text=text)
                )
        rows.append(DotRow(", ".join(cell), dots))
    draw_dots(axes, rows)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel("speed-up in seconds to vanilla's AUC: fixed settings (circles), auto (square)")
    return figure
