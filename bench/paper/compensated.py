"""Part `compensated`: the compensated weighting beside the paper's (docs/method.md).

Rounds to vanilla's target: with each weighting, with variants of the correction (its constant, its
clip), over depth, R, W, bits and hosts, and with changes to the engine that might help it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import celu
from bench.curves import Run
from bench.paper.drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    VERMILLION,
    Drawing,
    curve_series,
    draw_caption,
    draw_legend,
    draw_series,
    frame_curves,
    new_figure,
)
from bench.paper.runs import gather
from bench.paper.study import Baseline, Study, ratio, rounds_to, tune
from bench.paper.training import Experiment, Train
from bench.report import BenchResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HERE = "bench.paper.weightings"
_WEIGHTINGS = {
    "none": "none",
    "cosine": "cosine",
    "compensated": "compensated",
    "compensated and cosine": f"{_HERE}:WithCosine",
    "compensated, guest unweighted": f"{_HERE}:UnweightedGuest",
}
_VARIANTS = {
    "constant": {"0.5": f"{_HERE}:Half", "2": f"{_HERE}:Double", "4": f"{_HERE}:Fourfold"},
    "clip": {
        "[0, 1]": f"{_HERE}:AtMostOne",
        "[0, 4]": f"{_HERE}:AtMostFour",
        "none": f"{_HERE}:Unclipped",
    },
}


class Variant(NamedTuple):
    """A method, the other settings of its run, and a change to the engine, if any."""

    method: celu.Method
    codec: str | None = None
    hosts: int = 1
    experiment: str = ""

    def spec(self, baseline: Baseline) -> Train:
        """The run, with the baseline's optimizer, until it reaches the target."""
        spec = baseline.with_method(self.method, codec=self.codec, hosts=self.hosts)
        if not self.experiment:
            return spec
        values = {field.name: getattr(spec, field.name) for field in fields(spec)}
        return Experiment(**values, experiment=self.experiment)


Variants = dict[tuple[str, str], Variant]  # by axis and name


def _method(R: Any, weighting: str = "compensated", depth: int = 4, W: int = 5) -> celu.Method:
    return celu.Method(W=W, R=R, depth=depth, weighting=weighting)


_MAIN = ("none", "cosine", "compensated")


def _weightings(R: Any, names: Iterable[str] = _MAIN) -> Variants:
    """Each weighting over a serial link in fp32, and over a full link in 4 and 2 bits.

    Part `auto` has more of the latter.
    """
    settings = {
        "depth 1, fp32": (1, None),
        "depth 4, 4bit": (4, "4bit"),
        "depth 6, 2bit": (6, "2bit"),
    }
    return {
        (where, name): Variant(_method(R, _WEIGHTINGS[name], depth), codec)
        for where, (depth, codec) in settings.items()
        for name in names
    }


def _first_use(depths: Iterable[int]) -> Variants:
    """Rounds in flight without local steps: only the exchanged update is stale."""
    return {
        ("rounds in flight, no local steps, fp32", f"depth {depth}, {weighting}"): Variant(
            _method(1, weighting, depth)
        )
        for depth in depths
        for weighting in ("cosine", "compensated")
    }


def _details(R: Any, more_R: dict[str, Any]) -> Variants:
    """The constant, the clip, R and changes to the engine, with depth 4 and 4 bits."""
    found = {
        (axis, name): Variant(_method(R, weighting), "4bit")
        for axis, names in _VARIANTS.items()
        for name, weighting in names.items()
    }
    for name in (
        "the batch's curvature",
        "the guest predicts how Z moved",
        "cached updates do not add to the accumulator",
        "cached updates at half the rate",
    ):
        axis = "constant" if "curvature" in name else "engine"
        found[axis, name] = Variant(_method(R), "4bit", experiment=name)
    for name, pair in more_R.items():
        largest = max(pair.values())
        found["R", name] = Variant(_method(pair, W=max(5, largest)), "4bit")
    return found


def _link(R: Any) -> Variants:
    """W, depth, bits and hosts; with depth 4 and 4 bits where nothing else is said."""
    found = {("W", f"W={W}"): Variant(_method(R, W=W), "4bit") for W in (1, 3, 10)}
    found |= {
        ("depth", f"depth {depth}, 4bit"): Variant(_method(R, depth=depth), "4bit")
        for depth in (2, 8, 16)
    }
    found |= {
        ("bits", f"depth 1, {codec}, {weighting}"): Variant(_method(R, weighting, 1), codec)
        for codec in ("4bit", "2bit")
        for weighting in ("cosine", "compensated")
    }
    found |= {
        ("hosts", f"{num} hosts, {weighting}"): Variant(_method(R, weighting), "4bit", num)
        for num in (2, 3)
        for weighting in ("cosine", "compensated")
    }
    return found


_ORDERS = "order of local steps, depth 1, fp32"


def _orders() -> Variants:
    """Local steps while messages are in flight, and after the update, as algorithm 1 is printed."""
    orders: dict[str, Any] = {
        "overlapped": {},
        "after the update": {"local_step_order": "after-update"},
    }
    return {
        (_ORDERS, f"{name}, {order}"): Variant(
            celu.Method(W=W, R=_pair(5, 5), depth=1, weighting=weighting, **more)
        )
        for name, W, weighting in (("FedBCD", 1, "none"), ("CELU", 5, "cosine"))
        for order, more in orders.items()
    }


def _pair(guest: int, host: int) -> dict[str, int]:
    return {"guest": guest, "host": host}


_MORE_R = {
    f"R={guest}/{host}": _pair(guest, host)
    for guest, host in ((1, 5), (3, 3), (5, 1), (10, 10), (20, 20), (20, 1))
}
# By task and regime: R of the variants (the local steps that help there), and which axes.
_CASES: dict[tuple[str, str], Variants] = {
    ("criteo", "paper"): {
        **_weightings(_pair(5, 5), _WEIGHTINGS),
        **_first_use((2, 4, 8, 16)),
        **_details(_pair(5, 5), _MORE_R),
        **_link(_pair(5, 5)),
        **_orders(),
    },
    ("criteo", "strong"): {
        **_weightings(_pair(3, 1), _WEIGHTINGS),
        **_first_use((4, 16)),
        **_details(_pair(3, 1), _MORE_R),
    },
    ("flights", "paper"): _weightings(_pair(5, 5)),
    ("flights", "strong"): _weightings(_pair(3, 1)),
    ("avazu", "paper"): {**_weightings(_pair(1, 1)), **_first_use((2, 4))},
    ("avazu", "strong"): _weightings(_pair(3, 1)),
}

Found = dict[tuple[str, str], list[Run]]  # by axis and name
_NUM_BRIEF = 2  # variants on an axis of a brief study


def select_cases(brief: bool) -> dict[tuple[str, str], Variants]:
    """The variants of each case; a brief study has one case and a few variants on each axis."""
    if not brief:
        return _CASES
    case = ("criteo", "paper")
    selected = {**_weightings(_pair(5, 5)), **_orders()}  # the figures and the curves need these
    complete = {axis for axis, _ in selected}
    num_selected = Counter[str]()
    for (axis, name), variant in _CASES[case].items():
        if axis not in complete and num_selected[axis] < _NUM_BRIEF:
            selected[axis, name] = variant
            num_selected[axis] += 1
    return {case: selected}


def measure(study: Study) -> tuple[BenchResult, list[Drawing]]:
    """Every variant of every case, trained until it reaches vanilla's target."""
    result = BenchResult("paper compensated", list(study.seeds), profile=study.profile.name)
    cases = select_cases(study.profile.brief)
    tuned = gather(partial(tune, study, *case) for case in cases)
    baselines = dict(zip(cases, tuned, strict=True))
    specs = {
        (case, key): variant.spec(baselines[case])
        for case, variants in cases.items()
        for key, variant in variants.items()
    }
    done = study.train(specs.values())
    found: dict[tuple[str, str], Found] = {case: {} for case in cases}
    for (case, key), spec in specs.items():
        found[case][key] = done[spec]
    for case, baseline in baselines.items():
        _report(result, case, baseline, found[case])
        result.notes.append(f"{case[0].title()}: {baseline.task.description}.")
        result.notes.append(f"{case[0].title()}: {baseline.description}")
    main = found["criteo", "paper"]
    target = baselines["criteo", "paper"].target
    for figure, where in {
        "compensated_over_celu": "depth 1, fp32",
        "compensated_over_celu_full_line": "depth 4, 4bit",
    }.items():
        result.figures[figure] = ratio(
            rounds_to(main[where, "compensated"], target).mean,
            _rounds_at_least(main[where, "cosine"], baselines["criteo", "paper"]),
        )
    for name in ("FedBCD", "CELU"):
        result.figures[f"{name.lower()}_after_over_overlapped"] = ratio(
            rounds_to(main[_ORDERS, f"{name}, after the update"], target).mean,
            rounds_to(main[_ORDERS, f"{name}, overlapped"], target).mean,
        )
    result.notes.append(
        "In compensated_over_celu and compensated_over_celu_full_line, a run with the cosine that "
        "never reaches the target counts as all of the task's rounds, so they are upper bounds."
    )
    return result, [Drawing("curves", lambda: _curves(baselines, found))]


def _rounds_at_least(runs: list[Run], baseline: Baseline) -> float:
    found = rounds_to(runs, baseline.target).by_seed
    return mean(baseline.task.shape.rounds if r is None else r for r in found)


def _report(result: BenchResult, case: tuple[str, str], baseline: Baseline, found: Found) -> None:
    vanilla_rounds = rounds_to(baseline.runs, baseline.target).mean
    rows = {("vanilla", "one round at a time, fp32"): baseline.runs, **found}
    for (axis, name), runs in rows.items():
        rounds = rounds_to(runs, baseline.target)
        result.rows.append(
            {
                "data": case[0],
                "optimizer": f"{case[1]}, lr {baseline.vanilla.lr:g}",
                "axis": axis,
                "variant": name,
                "rounds": rounds.mean,
                "deviation": rounds.deviation,
                "rounds over vanilla": ratio(rounds.mean, vanilla_rounds),
                "by seed": [None if r is None else round(r) for r in rounds.by_seed],
                "best AUC by seed": [round(run.best_by(math.inf), 4) for run in runs],
            }
        )


_COLOURS = dict(zip(_WEIGHTINGS, (ORANGE, BLUE, VERMILLION, GREEN, BLACK), strict=True))


def _curves(
    baselines: dict[tuple[str, str], Baseline], found: dict[tuple[str, str], Found]
) -> Figure:
    """AUC over rounds with each weighting: one row a case, one column a link."""
    places = ("depth 1, fp32", "depth 4, 4bit", "depth 6, 2bit")
    figure, grid = new_figure(len(baselines), len(places), 12.0, 3.0 * len(baselines), sharey="row")
    for row, (case, baseline) in zip(grid, baselines.items(), strict=True):
        row[0].set_ylabel(f"held-out AUC\n{case[0]}, {case[1]} regime")
        for axes, where in zip(row, places, strict=True):
            series = [curve_series(baseline.runs, "vanilla", BLACK, style=":")]
            for name in ("cosine", "compensated", "none"):
                runs = found[case][where, name]
                text = rounds_to(runs, baseline.target).describe("rounds")
                series.append(curve_series(runs, f"{name}: {text}", _COLOURS[name]))
            draw_series(axes, series)
            draw_legend(axes, series)
            frame_curves(axes, series, baseline.target)
            axes.set_title(where)
            axes.set_xlabel("communication rounds")
    draw_caption(
        figure,
        "Dotted: vanilla, serial, fp32. Dashed: the target, at which runs stop. Bands: seeds.",
    )
    return figure
