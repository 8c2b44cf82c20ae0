"""Part `similarity`: the paper's figure 5 (d), cosine similarity of stale and fresh statistics.

Quantiles over the instances of a batch, in the course of training, at both parties: of Z at the
host and of dZ at the guest. With the paper's linear top every instance's dZ is a multiple of one
vector, so all instances of a batch have the same cosine at the guest; the regime of the strongest
vanilla has a top with a hidden layer. W=1 is measured in addition to the paper's W=5: weighting
drops instances whose cosine is below cos(xi), and the difference shows for which W that matters.
"""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING

from bench.pair import REGIMES
from bench.paper.drawing import (
    VERMILLION,
    Drawing,
    Series,
    draw_caption,
    draw_legend,
    draw_series,
    new_figure,
)
from bench.paper.study import Study, tune_all
from bench.paper.training import CELU, CONSECUTIVE, Train
from bench.report import BenchResult
from celu.events import SIMILARITY_QUANTILES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TASK = "criteo"
PARTIES = {"host": "Z", "guest": "dZ"}
_BINS = 60
# The lower the quantile, the lighter the colour.
_SHADES = {
    0.0: ("least", "#9ecae1"),
    0.1: ("10%", "#4292c6"),
    0.25: ("25%", "#08519c"),
    0.5: ("median", "#000000"),
}
_TENTH = SIMILARITY_QUANTILES.index(0.1)

# The measured settings: a regime and a method. All use xi=60: a cosine below 0.5 gets weight 0.
_SETTINGS = {
    "paper": ("paper", CELU),
    "strong": ("strong", CELU),
    "paper_w1": ("paper", CONSECUTIVE),
}
_TITLES = {
    "paper": "paper's regime, W=5",
    "strong": "strong regime, W=5",
    "paper_w1": "paper's regime, W=1",
}
# Rounds, and the quantiles averaged over neighbouring rounds.
Curve = list[tuple[float, list[float]]]


def measure(study: Study) -> tuple[BenchResult, list[Drawing]]:
    """CELU with the paper's settings and with W=1: all rounds, with the first seed."""
    seed = study.seeds[0]
    result = BenchResult("paper similarity", [seed], profile=study.profile.name)
    curves: dict[tuple[str, str], Curve] = {}
    baselines = tune_all(study, TASK, REGIMES)
    result.notes += [baseline.description for baseline in baselines.values()]
    trains = {
        setting: Train(TASK, regime, baselines[regime].vanilla.lr, method, similarities=True)
        for setting, (regime, method) in _SETTINGS.items()
    }
    done = study.runs.run((train, seed) for train in trains.values())
    for setting, train in trains.items():
        quantiles = done[train, seed]["quantiles"]
        for party in PARTIES:
            curves[setting, party] = smooth(quantiles[party])
            _add_rows(result, setting, party, curves[setting, party])
    task = study.profile.tasks[TASK]
    result.notes += [
        f"R=5, xi=60, the first seed: {task.description}. Quantiles over the instances of the last "
        f"local update of a round, averaged over a {_BINS}th of the rounds.",
        *(_claim(result, *which) for which in curves),
    ]
    return result, [Drawing("quantiles", lambda: _draw(curves))]


def smooth(rows: list[list[float]]) -> Curve:
    """Average rounds and quantiles over bins of neighbouring rounds."""
    size = max(1, len(rows) // _BINS)
    curve: Curve = []
    for start in range(0, len(rows), size):
        rounds, *quantiles = (
            mean(column) for column in zip(*rows[start : start + size], strict=True)
        )
        curve.append((rounds, quantiles))
    return curve


def _add_rows(result: BenchResult, setting: str, party: str, curve: Curve) -> None:
    for share in (0.0, 0.1, 0.25, 0.5, 1.0):
        rounds, quantiles = curve[min(int(share * len(curve)), len(curve) - 1)]
        named = {
            f"{q:.0%}": value for q, value in zip(SIMILARITY_QUANTILES, quantiles, strict=True)
        }
        which = {"setting": _TITLES[setting], "party": party, "round": round(rounds)}
        result.rows.append({**which, **named})
    tenths = [quantiles[_TENTH] for _, quantiles in curve]
    result.figures[f"{party}_q10_least_{setting}"] = min(tenths)
    result.figures[f"{party}_q10_{setting}"] = mean(tenths)


def _claim(result: BenchResult, setting: str, party: str) -> str:
    least = result.figures[f"{party}_q10_least_{setting}"]
    assert least is not None
    holds = "holds" if least > 0.5 else "does not hold"
    return (
        f"That over 90% of the cosines exceed 0.5 at any time {holds} at the {party} in the "
        f"{_TITLES[setting]}: the lowest 10% quantile is {least:.2f}, the mean one "
        f"{result.figures[f'{party}_q10_{setting}']:.2f}."
    )


def _draw(curves: dict[tuple[str, str], Curve]) -> Figure:
    figure, grid = new_figure(3, 2, 9, 7.8, sharex=True, sharey=True)
    for (setting, party), axes in zip(curves, (a for row in grid for a in row), strict=True):
        series = _draw_curve(axes, curves[setting, party])
        axes.set_title(f"{party.capitalize()} ({PARTIES[party]}), {_TITLES[setting]}")
    for row in grid:
        row[0].set_ylabel("cosine, stale to fresh")
    for axes in grid[-1]:
        axes.set_xlabel("communication rounds")
        draw_legend(axes, series, columns=len(series))
    draw_caption(
        figure,
        "Dashed: 0.5, which 90% of the cosines exceed in the paper; lower ones get weight 0.",
    )
    return figure


def _draw_curve(axes: Axes, curve: Curve) -> list[Series]:
    rounds = [at for at, _ in curve]
    by_quantile = dict(
        zip(SIMILARITY_QUANTILES, zip(*(q for _, q in curve), strict=True), strict=True)
    )
    series = [
        Series(name, colour, rounds, by_quantile[quantile])
        for quantile, (name, colour) in _SHADES.items()
    ]
    draw_series(axes, series)
    axes.axhline(0.5, color=VERMILLION, lw=0.8, ls=(0, (4, 3)))
    axes.set_xlim(0, rounds[-1])
    return series
