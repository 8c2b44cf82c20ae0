"""Part `similarity`: the paper's figure 5 (d), how like the stale statistics are to fresh ones.

Quantiles of the cosines over the instances of a batch, in the course of training, at both parties:
of Z at the host and of dZ at the guest. With the paper's linear top every instance's dZ is a
multiple of one vector, so that at the guest all cosines of a batch are alike; the regime of the
strongest vanilla has a top with a hidden layer. Monitors the paper's W=5 also W=1: instances whose
cosine is below that of xi are left out, and by how many more that happens where one batch is used
again and again says what weighting does for which W.
"""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING

from bench.pair import REGIMES
from bench.paper.drawing import (
    VERMILLION,
    Drawing,
    LinkEmulator,
    draw_caption,
    draw_key,
    draw_lines,
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
# The lower quantiles, the lower the lighter.
_SHADES = {
    0.0: ("least", "#9ecae1"),
    0.1: ("10%", "#4292c6"),
    0.25: ("25%", "#08519c"),
    0.5: ("median", "#000000"),
}
_TENTH = SIMILARITY_QUANTILES.index(0.1)

# What is looked at: a regime, and the method in it. All with xi=60, so that below 0.5 is left out.
_SETTINGS = {
    "paper": ("paper", CELU),
    "strong": ("strong", CELU),
    "paper_w1": ("paper", CONSECUTIVE),
}
_WORDS = {
    "paper": "paper's regime, W=5",
    "strong": "strong regime, W=5",
    "paper_w1": "paper's regime, W=1",
}
# By round: the quantiles, averaged over the rounds around it.
Course = list[tuple[float, list[float]]]


def measure(study: Study) -> tuple[BenchResult, list[Drawing]]:
    """CELU with the paper's settings and with W=1, all rounds, the first seed."""
    seed = study.seeds[0]
    result = BenchResult("paper similarity", [seed], profile=study.profile.name)
    courses: dict[tuple[str, str], Course] = {}
    baselines = tune_all(study, TASK, REGIMES)
    result.notes += [baseline.words for baseline in baselines.values()]
    trains = {
        setting: Train(TASK, regime, baselines[regime].vanilla.lr, method, similarities=True)
        for setting, (regime, method) in _SETTINGS.items()
    }
    done = study.runs.run((train, seed) for train in trains.values())
    for setting, train in trains.items():
        quantiles = done[train, seed]["quantiles"]
        for party in PARTIES:
            courses[setting, party] = binned(quantiles[party])
            _add_rows(result, setting, party, courses[setting, party])
    task = study.profile.tasks[TASK]
    result.notes += [
        f"R=5, xi=60, the first seed: {task.words}. Quantiles over the instances of the last "
        f"local update of a round, averaged over a {_BINS}th of the rounds.",
        *(_claim(result, *which) for which in courses),
    ]
    return result, [Drawing("quantiles", lambda: _draw(courses))]


def binned(rows: list[list[float]]) -> Course:
    """Rounds and quantiles, averaged over neighbours."""
    size = max(1, len(rows) // _BINS)
    course: Course = []
    for start in range(0, len(rows), size):
        rounds, *quantiles = (
            mean(column) for column in zip(*rows[start : start + size], strict=True)
        )
        course.append((rounds, quantiles))
    return course


def _add_rows(result: BenchResult, setting: str, party: str, course: Course) -> None:
    for share in (0.0, 0.1, 0.25, 0.5, 1.0):
        rounds, quantiles = course[min(int(share * len(course)), len(course) - 1)]
        named = {
            f"{q:.0%}": value for q, value in zip(SIMILARITY_QUANTILES, quantiles, strict=True)
        }
        which = {"setting": _WORDS[setting], "party": party, "round": round(rounds)}
        result.rows.append({**which, **named})
    tenths = [quantiles[_TENTH] for _, quantiles in course]
    result.figures[f"{party}_q10_least_{setting}"] = min(tenths)
    result.figures[f"{party}_q10_{setting}"] = mean(tenths)


def _claim(result: BenchResult, setting: str, party: str) -> str:
    least = result.figures[f"{party}_q10_least_{setting}"]
    assert least is not None
    holds = "holds" if least > 0.5 else "does not hold"
    return (
        f"That over 90% of the cosines exceed 0.5 at any time {holds} at the {party} in the "
        f"{_WORDS[setting]}: the lowest 10% quantile is {least:.2f}, the mean one "
        f"{result.figures[f'{party}_q10_{setting}']:.2f}."
    )


def _draw(courses: dict[tuple[str, str], Course]) -> Figure:
    figure, grid = new_figure(3, 2, 9, 7.8, sharex=True, sharey=True)
    for (setting, party), axes in zip(courses, (a for row in grid for a in row), strict=True):
        lines = _draw_course(axes, courses[setting, party])
        axes.set_title(f"{party.capitalize()} ({PARTIES[party]}), {_WORDS[setting]}")
    for row in grid:
        row[0].set_ylabel("cosine, stale to fresh")
    for axes in grid[-1]:
        axes.set_xlabel("communication rounds")
        draw_key(axes, lines, columns=len(lines))
    draw_caption(
        figure,
        "Dashed: 0.5, which 90% of the cosines exceed in the paper; what is below is left out.",
    )
    return figure


def _draw_course(axes: Axes, course: Course) -> list[LinkEmulator]:
    rounds = [at for at, _ in course]
    by_quantile = dict(
        zip(SIMILARITY_QUANTILES, zip(*(q for _, q in course), strict=True), strict=True)
    )
    lines = [
        LinkEmulator(name, colour, rounds, by_quantile[quantile])
        for quantile, (name, colour) in _SHADES.items()
    ]
    draw_lines(axes, lines)
    axes.axhline(0.5, color=VERMILLION, lw=0.8, ls=(0, (4, 3)))
    axes.set_xlim(0, rounds[-1])
    return lines
