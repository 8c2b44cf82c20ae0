"""Part `theory`: the paper's section 4.1 on W and R, measured.

Theorem 1 bounds the error by (1 + 1/W), the variance of mini-batches drawn from a workset, and by
2 - rho, where rho is a lower bound of the cosine between a stale gradient and the true gradient of
the same batch; the remark adds that rho falls with W and with R.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from bench.paper.claims import describe_trend
from bench.paper.drawing import (
    BLUE,
    GREY,
    VERMILLION,
    Drawing,
    Series,
    draw_legend,
    draw_marker_legend,
    draw_series,
    new_figure,
)
from bench.paper.runs import Values
from bench.paper.stale_gradients import FILL, PARTIES, StaleGradients
from bench.paper.study import Study, tune
from bench.report import BenchResult
from celu.errors import CeluError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK = "criteo"
WS, RS = (1, 3, 5, 8), (3, 5, 8)
_W, _R = 5, 5  # fixed while the other varies
_COLOURS = {"host": BLUE, "guest": VERMILLION}

# By W and R: the measurements at each checkpoint with each seed, those of the first seed first.
Found = dict[tuple[int, int], list[Values]]


def measure(study: Study) -> tuple[BenchResult, list[Drawing]]:
    """Variances and cosines at the profile's checkpoints, for each W and R."""
    profile = study.profile
    baseline = tune(study, TASK, "paper")
    grid = tuple(dict.fromkeys([*((W, _R) for W in WS), *((_W, R) for R in RS)]))
    spec = StaleGradients(TASK, baseline.vanilla.lr, grid, profile.checkpoints, profile.replicas)
    done = study.runs.run((spec, seed) for seed in study.seeds)
    found: Found = {at: [] for at in grid}
    for seed in study.seeds:
        for measured in done[spec, seed]["looks"]:
            found[measured["W"], measured["R"]].append(measured)
    result = BenchResult("paper theory", list(study.seeds), profile=profile.name)
    for (W, R), measurements in found.items():
        for party in PARTIES:
            values = {n: _mean_known(measurements, party, n) for n in measurements[0][party]}
            result.rows.append({"party": party, "W": W, "R": R, **values})
    _conclude(result, found)
    result.notes += [
        f"{baseline.task.description}; CELU with W=5, R=5, xi=60 in the paper's regime (rate "
        f"{baseline.vanilla.lr:g}) up to rounds {', '.join(map(str, profile.checkpoints))}; from "
        f"each, {profile.replicas} worksets of different batches, each filled by {FILL} rounds; "
        "the weights stay fixed while the gradients of a round's local steps are computed. Means "
        "over checkpoints and seeds. round_variance: of the mean gradient of a round's R - 1 local "
        "steps, around its mean over worksets; step_variance: of its first local step only. "
        "cosine: between a local step's gradient and the true gradient of its batch, with respect "
        "to the party's own parameters. turned: the share of local steps whose batch the model "
        "now predicts too many clicks for, and at its exchange predicted too few, or the other "
        "way round; cosine_turned and cosine_not_turned: the mean cosines of those and of the "
        "others.",
    ]
    return result, [
        Drawing("variance", lambda: _draw_variance(found)),
        Drawing("rho", lambda: _draw_rho(found)),
    ]


def _conclude(result: BenchResult, found: Found) -> None:
    result.figures |= {f"turned_w{W}": _mean(found[W, _R], PARTIES[0], "turned") for W in WS}
    for party in PARTIES:
        of_rounds = {W: mean(_over_first(found, party, "round_variance", W)) for W in WS}
        of_steps = {W: mean(_over_first(found, party, "step_variance", W)) for W in WS}
        rho_W = {W: _mean(found[W, _R], party, "cosine") for W in WS}
        rho_R = {R: _mean(found[_W, R], party, "cosine") for R in RS}
        plain = _mean(found[_W, _R], party, "unweighted_cosine")
        result.figures |= {
            f"{party}_round_variance_w5_over_w1": of_rounds[5],
            f"{party}_step_variance_w5_over_w1": of_steps[5],
            f"{party}_rho": rho_W[_W],
            f"{party}_rho_least": min(one[party]["least_cosine"] for one in found[_W, _R]),
            f"{party}_weighting_lifts_rho": rho_W[_W] - plain,
            f"{party}_rho_turned": _mean_known(found[_W, _R], party, "cosine_turned"),
            f"{party}_rho_not_turned": _mean_known(found[_W, _R], party, "cosine_not_turned"),
        }
        result.notes += [
            describe_trend(
                f"At the {party} the variance of a round's local steps, relative to W=1,",
                of_rounds,
                "falls",
            )
            + f" The variance of a single local step at W={WS[-1]} is {of_steps[WS[-1]]:.2f} "
            "times that at W=1: a batch drawn from a workset that is itself drawn from the data "
            "is like any other batch; W changes how often a round repeats it.",
            describe_trend(f"At the {party} the cosine over W", rho_W, "falls"),
            describe_trend(f"At the {party} the cosine over R", rho_R, "falls"),
        ]


def _over_first(found: Found, party: str, name: str, W: int) -> list[float]:
    """A variance divided by that of the smallest W, for each seed and checkpoint."""
    pairs = list(zip(found[W, _R], found[WS[0], _R], strict=True))
    for _, first in pairs:
        if not first[party][name]:
            raise CeluError(
                f"theory: after round {first['round']} all gradients at the {party} with "
                f"W={WS[0]} are the same: its units are dead. Lower the learning rates of the "
                "profile"
            )
    return [one[party][name] / first[party][name] for one, first in pairs]


def _mean(measurements: Sequence[Values], party: str, name: str) -> float:
    values: list[float] = [one[party][name] for one in measurements]
    return mean(values)


def _mean_known(measurements: Sequence[Values], party: str, name: str) -> float | None:
    """The mean of those that are not None."""
    values = [v for one in measurements if (v := one[party][name]) is not None]
    return mean(values) if values else None


def _draw_variance(found: Found) -> Figure:
    figure, (row,) = new_figure(1, 2, 8, 3.9, sharey=True)
    bound = Series(
        "proportional to 1 + 1/W, the paper's bound",
        GREY,
        WS,
        [(1 + 1 / W) / 2 for W in WS],
        style=":",
    )
    for axes, party in zip(row, PARTIES, strict=True):
        series = [bound]
        for name, label, style in (
            ("step_variance", "○ one local step", "--"),
            ("round_variance", f"● the mean of a round's {_R - 1} local steps", "-"),
        ):
            values = [_over_first(found, party, name, W) for W in WS]
            series.append(
                Series(
                    label,
                    _COLOURS[party],
                    WS,
                    [mean(v) for v in values],
                    [min(v) for v in values],
                    [max(v) for v in values],
                    style,
                    "o",
                    open=name == "step_variance",
                )
            )
        draw_series(axes, series)
        draw_legend(axes, series, columns=1)
        axes.set_title(f"{party.capitalize()}: variance of the update, R={_R}")
        axes.set_xlabel("W, batches in the workset")
        axes.set_xticks(WS)
        axes.set_ylim(bottom=0)
    row[0].set_ylabel("variance over that at W=1")
    return figure


def _draw_rho(found: Found) -> Figure:
    figure, (row,) = new_figure(1, 2, 8, 3.4, sharey=True)
    panels = (("W", WS, [(W, _R) for W in WS]), ("R", RS, [(_W, R) for R in RS]))
    for axes, (name, values, settings) in zip(row, panels, strict=True):
        for party in PARTIES:
            weighted = [[one[party]["cosine"] for one in found[at]] for at in settings]
            plain = [_mean(found[at], party, "unweighted_cosine") for at in settings]
            solid = Series(
                party,
                _COLOURS[party],
                values,
                [mean(v) for v in weighted],
                [min(v) for v in weighted],
                [max(v) for v in weighted],
                marker="o",
            )
            hollow = Series("", _COLOURS[party], values, plain, style=":", marker="o", open=True)
            draw_series(axes, [hollow, solid])
            axes.annotate(
                party,
                (values[-1], solid.ys[-1]),
                xytext=(6, 0),
                textcoords="offset points",
                color=_COLOURS[party],
                va="center",
            )
        fixed = f"R={_R}" if name == "W" else f"W={_W}"
        axes.set_title(f"Over {name} ({fixed})")
        axes.set_xlabel({"W": "W, batches in the workset", "R": "R, updates per batch"}[name])
        axes.set_xticks(values)
        axes.set_xlim(values[0] - 0.5, values[-1] + 1.2)
    row[0].set_ylabel("cosine, stale to true gradient")
    draw_marker_legend(row[0], [("○ without weighting", GREY)])
    return figure
