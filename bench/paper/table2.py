"""Part `table2`: the paper's table 2 and figure 5 (a-c), rounds to the same AUC.

R, W and xi are varied one at a time, each in two settings. The methods are also compared with the
strongest vanilla that we know, which the paper does not do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import celu
from bench.curves import Run
from bench.pair import VANILLA
from bench.paper.claims import compare_with_paper
from bench.paper.drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORDERED,
    VERMILLION,
    Dot,
    DotRow,
    Drawing,
    Series,
    curve_series,
    draw_caption,
    draw_dots,
    draw_legend,
    draw_marker_legend,
    draw_series,
    frame_curves,
    new_figure,
)
from bench.paper.study import Baseline, Spread, Study, ratio, rounds_to, tune_all
from bench.paper.training import CELU, CONSECUTIVE, GUEST_ONLY, Train
from bench.report import BenchResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK = "criteo"
_VANILLA_ROUNDS = 31540.0


@dataclass(frozen=True)
class Cell:
    """A cell of the paper's table: a method, and the paper's rounds and deviation."""

    axis: str
    setting: str
    value: str
    method: celu.Method
    rounds: float
    deviation: float

    @property
    def paper_ratio(self) -> float:
        """The paper's rounds over its rounds of vanilla."""
        return self.rounds / _VANILLA_ROUNDS


def _cells() -> list[Cell]:
    def method(W: int, R: int, xi: float | None) -> celu.Method:
        if R == 1:
            return VANILLA
        if xi is None:
            return celu.Method(W=W, R=R, weighting="none")
        return celu.Method(W=W, R=R, xi=xi, weighting="cosine")

    vanilla = (_VANILLA_ROUNDS, 631.19)
    update = {
        90: (vanilla, (14000, 424.26), (12767, 654.90), (12733, 410.96)),
        60: (vanilla, (14333, 329.98), (12767, 286.74), (12500, 424.26)),
    }
    sampling = {
        90: ((16400, 244.95), (13333, 339.94), (12767, 654.90), (13333, 249.44)),
        60: ((15967, 339.94), (12700, 141.42), (12767, 286.74), (12667, 419.00)),
    }
    weighting = {
        3: ((16767, 492.16), (14233, 235.70), (15200, 163.30), (14667, 94.28)),
        5: ((16467, 492.16), (12767, 286.74), (12567, 205.48), (12767, 654.90)),
    }
    cells = []
    for xi, found in update.items():
        for R, (rounds, dev) in zip((1, 3, 5, 8), found, strict=True):
            cell = ("local update", f"W=5, xi={xi}", f"R={R}", method(5, R, xi))
            cells.append(Cell(*cell, rounds, dev))
    for xi, found in sampling.items():
        for W, (rounds, dev) in zip((1, 3, 5, 8), found, strict=True):
            cell = ("local sampling", f"R=5, xi={xi}", f"W={W}", method(W, 5, xi))
            cells.append(Cell(*cell, rounds, dev))
    for both, found in weighting.items():
        for angle, (rounds, dev) in zip((None, 90, 60, 30), found, strict=True):
            value = "no weights" if angle is None else f"xi={angle}"
            cell = ("instance weighting", f"W=R={both}", value, method(both, both, angle))
            cells.append(Cell(*cell, rounds, dev))
    return cells


CELLS = _cells()
_NO_WEIGHTS = celu.Method(W=5, R=5, weighting="none")
_STRONG = {
    "vanilla": VANILLA,
    "W=5, R=5, xi=60": CELU,
    "W=1, R=5, xi=60": CONSECUTIVE,
    "W=5, R=5, no weights": _NO_WEIGHTS,
    "guest only, W=5, R=5, xi=60": GUEST_ONLY,
}


def measure(study: Study) -> tuple[BenchResult, list[Drawing]]:
    """Tune vanilla in both regimes, then fill in the table."""
    paper, strong = tune_all(study, TASK, ("paper", "strong")).values()
    done = study.train(
        [
            *(paper.with_method(cell.method) for cell in CELLS if cell.method != VANILLA),
            paper.with_method(GUEST_ONLY),
            *(strong.with_method(method) for method in _STRONG.values() if method != VANILLA),
        ]
    )
    by_method = {VANILLA: paper.runs} | {
        train.method: runs for train, runs in done.items() if train.regime == "paper"
    }
    strong_by_method = {VANILLA: strong.runs} | {
        train.method: runs for train, runs in done.items() if train.regime == "strong"
    }
    result = BenchResult("paper table2", list(study.seeds), profile=study.profile.name)
    _fill_in(result, paper, by_method, strong, strong_by_method)
    return result, [
        Drawing("curves", lambda: _curves(paper, by_method)),
        Drawing("rounds", lambda: _ratios(paper, by_method, strong, strong_by_method)),
    ]


RunsByMethod = dict[celu.Method, list[Run]]


def _fill_in(
    result: BenchResult,
    paper: Baseline,
    runs: RunsByMethod,
    strong: Baseline,
    strong_runs: RunsByMethod,
) -> None:
    spreads = {method: rounds_to(seed_runs, paper.target) for method, seed_runs in runs.items()}
    for cell in CELLS:
        result.rows.append(
            {
                **_row(paper.vanilla, cell.axis, cell.setting, cell.value),
                **_measured(spreads[cell.method], spreads[VANILLA]),
                "the paper's rounds": int(cell.rounds),
                "its deviation": cell.deviation,
                "its ratio": cell.paper_ratio,
            }
        )
    result.rows.append(
        {
            **_row(paper.vanilla, "who", "W=5, R=5, xi=60", "guest only"),
            **_measured(spreads[GUEST_ONLY], spreads[VANILLA]),
        }
    )
    strong_spreads = {
        m: rounds_to(seed_runs, strong.target) for m, seed_runs in strong_runs.items()
    }
    for name, method in _STRONG.items():
        result.rows.append(
            {
                **_row(strong.vanilla, "strongest vanilla", "", name),
                **_measured(strong_spreads[method], strong_spreads[VANILLA]),
            }
        )
    result.figures |= figures_of({method: s.mean for method, s in spreads.items()})
    strongest = figures_of({method: s.mean for method, s in strong_spreads.items()})
    result.figures |= {f"{name}_strongest": value for name, value in strongest.items()}
    to_same = rounds_to(strong.runs, paper.target).mean
    result.figures["celu_over_strongest_vanilla"] = ratio(spreads[CELU].mean, to_same)
    result.notes += [
        f"Rounds to the same AUC, mean and sample deviation over seeds: {paper.task.description}.",
        paper.description,
        strong.description,
        "Ratios are over vanilla of the same regime, to its target. celu_over_strongest_vanilla: "
        "CELU in the paper's regime over the strongest vanilla, to the target of the paper's.",
        *(compare_with_paper(n, result.figures[n], value) for n, value in paper_figures().items()),
    ]


def figures_of(rounds: dict[celu.Method, float | None]) -> dict[str, float | None]:
    """The figures of a regime, computed from the mean rounds of its methods."""
    return {
        "celu_rounds": ratio(rounds[CELU], rounds[VANILLA]),
        "w5_over_w1": ratio(rounds[CELU], rounds[CONSECUTIVE]),
        "weighting_gain": ratio(rounds[CELU], rounds[_NO_WEIGHTS]),
        "guest_only_rounds": ratio(rounds[GUEST_ONLY], rounds[VANILLA]),
    }


def paper_figures() -> dict[str, float]:
    """The same figures from the paper's table, each from the axis that it is about."""
    rounds = {(cell.setting, cell.value): cell.rounds for cell in CELLS}
    return {
        "celu_rounds": rounds["W=5, xi=60", "R=5"] / _VANILLA_ROUNDS,
        "w5_over_w1": rounds["R=5, xi=60", "W=5"] / rounds["R=5, xi=60", "W=1"],
        "weighting_gain": rounds["W=R=5", "xi=60"] / rounds["W=R=5", "no weights"],
    }


def _row(vanilla: Train, axis: str, setting: str, value: str) -> dict[str, Any]:
    regime = f"{vanilla.regime}, lr {vanilla.lr:g}"
    return {"optimizer": regime, "axis": axis, "setting": setting, "value": value}


def _measured(spread: Spread, vanilla: Spread) -> dict[str, Any]:
    return {
        "rounds": spread.mean,
        "deviation": spread.deviation,
        "ratio to vanilla": ratio(spread.mean, vanilla.mean),
        "by seed": [None if r is None else round(r) for r in spread.by_seed],
    }


def _panels() -> list[list[list[Cell]]]:
    """The cells by setting and axis; the paper's preferred setting comes first."""
    axes = list(dict.fromkeys(cell.axis for cell in CELLS))
    first, second = [], []
    for axis in axes:
        settings = list(dict.fromkeys(cell.setting for cell in CELLS if cell.axis == axis))
        groups = [[c for c in CELLS if (c.axis, c.setting) == (axis, s)] for s in settings]
        second.append(groups[0])
        first.append(groups[1])
    return [first, second]


def _curves(baseline: Baseline, runs: RunsByMethod) -> Figure:
    figure, grid = new_figure(2, 3, 10.5, 6.8, sharey=True)

    def curve(method: celu.Method, name: str, colour: str, style: str = "-") -> Series:
        text = rounds_to(runs[method], baseline.target).describe("rounds")
        return curve_series(runs[method], f"{_greek(name)}: {text}", colour, style=style)

    every = [curve_series(seed_runs, "", "") for seed_runs in runs.values()]
    for row, panels in zip(grid, _panels(), strict=True):
        row[0].set_ylabel("held-out AUC")
        for axes, cells in zip(row, panels, strict=True):
            varied = [cell for cell in cells if cell.method != VANILLA]
            colours = ORDERED[-len(varied) :]
            series = [curve(VANILLA, "vanilla (R=1)", BLACK, ":")]
            series += [curve(c.method, c.value, x) for c, x in zip(varied, colours, strict=True)]
            draw_series(axes, series)
            draw_legend(axes, series)
            frame_curves(axes, every, baseline.target)
            axes.set_title(_greek(f"{cells[0].axis.capitalize()} ({cells[0].setting})"))
            axes.set_xlabel("communication rounds")
    draw_caption(
        figure,
        f"Dashed: AUC {baseline.target:.4f}, at which runs stop. Bands: the range over seeds.",
    )
    return figure


def _ratios(
    paper: Baseline, runs: RunsByMethod, strong: Baseline, strong_runs: RunsByMethod
) -> Figure:
    figure, ((axes,),) = new_figure(1, 1, 7.5, 7.6)
    rows: list[DotRow] = []
    for axis, setting in dict.fromkeys((cell.axis, cell.setting) for cell in CELLS):
        rows.append(DotRow(_greek(f"{axis}, {setting}")))
        for cell in (c for c in CELLS if (c.axis, c.setting) == (axis, setting)):
            spread = cell.deviation / _VANILLA_ROUNDS
            theirs = Dot(cell.paper_ratio, spread, VERMILLION, open=True)
            ours = _dot(paper, runs, cell.method, BLUE, "o")
            rows.append(DotRow(_greek(cell.value), [ours, theirs]))
    rows.append(DotRow("with the strongest vanilla's optimizer, over it"))
    for name, method in _STRONG.items():
        dot = _dot(strong, strong_runs, method, GREEN, "s")
        rows.append(DotRow(_greek(name), [dot]))
    draw_dots(axes, rows)
    axes.set_xlabel("rounds to the same AUC, over vanilla's")
    axes.axvline(1, color="#999999", lw=0.8)
    axes.set_xlim(left=0)
    here, theirs_, strongest = (
        ("● here", BLUE),
        ("○ the paper", VERMILLION),
        ("■ strong regime", GREEN),
    )
    draw_marker_legend(axes, [here, theirs_, strongest])
    return figure


def _greek(text: str) -> str:
    """Write xi as the paper's letter, in degrees."""
    return re.sub(r"xi=(\d+)", r"ξ=\1°", text)


def _dot(
    baseline: Baseline, runs: RunsByMethod, method: celu.Method, colour: str, marker: str
) -> Dot:
    vanilla = rounds_to(runs[VANILLA], baseline.target).mean
    spread = rounds_to(runs[method], baseline.target)
    deviation = ratio(spread.deviation, vanilla)
    text = spread.describe("rounds")
    return Dot(ratio(spread.mean, vanilla), deviation, colour, marker=marker, text=text)
