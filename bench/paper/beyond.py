"""Part `beyond`: variants that the paper does not try.

Rounds in flight, codecs, local steps at one party only, `auto`, and more hosts: rounds and virtual
seconds to the same AUC, compared with both baselines. Part `together` has only those that combine
rounds in flight, a codec and local steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import celu
from bench.curves import Run
from bench.pair import VANILLA
from bench.paper.drawing import (
    BLACK,
    BLUE,
    ORDERED,
    VERMILLION,
    Dot,
    DotRow,
    Drawing,
    Series,
    draw_caption,
    draw_dots,
    draw_legend,
    draw_marker_legend,
    draw_series,
    frame_curves,
    new_figure,
)
from bench.paper.study import Baseline, Study, ratio, rounds_to, seconds_to, tune_all
from bench.paper.training import CELU, GUEST_ONLY, TOGETHER
from bench.report import BenchResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK = "criteo"
_MARKS = {"paper": (BLUE, "o", -0.17), "strong": (VERMILLION, "s", 0.17)}
_COLOURS = ORDERED[-3:]  # of the first variants of an axis; the others repeat them, dashed
_HOST_ONLY = celu.Method(W=5, R={"guest": 1, "host": 5}, xi=60, weighting="cosine")
_BOTH_TOGETHER = celu.Method(W=5, R=5, xi=60, depth=4, weighting="cosine")
_GUEST_COMPENSATED = celu.Method(W=5, R={"guest": 3, "host": 1}, depth=6, weighting="compensated")
_BOTH_COMPENSATED = celu.Method(W=5, R={"guest": 5, "host": 5}, depth=6, weighting="compensated")
_THREE_COMPENSATED = celu.Method(W=5, R={"guest": 3, "host": 3}, depth=6, weighting="compensated")
HOSTS = (2, 3, 5)
_COMBINED = "all of it"  # the axis of the variants that combine the others

Variant = tuple[celu.Method, dict[str, Any]]
# By axis and name; each differs from vanilla only as its name says.
VARIANTS: dict[str, dict[str, Variant]] = {
    "rounds in flight": {
        f"depth {depth}": (celu.Method(R=1, depth=depth), {}) for depth in (2, 4, 8)
    },
    "codec": {codec: (VANILLA, {"codec": codec}) for codec in ("bf16", "int8", "4bit")},
    "local steps by": {
        "the guest": (GUEST_ONLY, {}),
        "the host": (_HOST_ONLY, {}),
        "both": (CELU, {}),
    },
    _COMBINED: {
        "guest, cosine, depth 4, 4bit": (TOGETHER, {"codec": "4bit"}),
        "both, cosine, depth 4, 4bit": (_BOTH_TOGETHER, {"codec": "4bit"}),
        "guest R=3, compensated, depth 6, 2bit": (_GUEST_COMPENSATED, {"codec": "2bit"}),
        "both, compensated, depth 6, 2bit": (_BOTH_COMPENSATED, {"codec": "2bit"}),
        "both R=3, compensated, depth 6, 4bit": (_THREE_COMPENSATED, {"codec": "4bit"}),
        "auto": (celu.Method(auto=True), {}),
    },
    "hosts": {f"{num} hosts, vanilla": (VANILLA, {"hosts": num}) for num in HOSTS},
}
# With several hosts: local steps at the parties where they help in this regime with one host.
_STEPS_WITH_HOSTS = {"paper": ("both", CELU), "strong": ("the guest", GUEST_ONLY)}

Found = dict[tuple[str, str], list[Run]]  # by axis and name


def variants_in(regime: str) -> dict[str, dict[str, Variant]]:
    """The variants of a regime, by axis and name."""
    who, method = _STEPS_WITH_HOSTS[regime]
    with_steps = {f"{num} hosts, local steps by {who}": (method, {"hosts": num}) for num in HOSTS}
    return {**VARIANTS, "hosts": {**VARIANTS["hosts"], **with_steps}}


def measure(study: Study) -> tuple[BenchResult, list[Drawing]]:
    """Every variant in both regimes, trained until it reaches vanilla's target."""
    return _measure(study, "paper beyond", list(VARIANTS))


def measure_together(study: Study) -> tuple[BenchResult, list[Drawing]]:
    """The same for the variants that combine everything: far fewer runs."""
    return _measure(study, "paper together", [_COMBINED])


def _measure(study: Study, part: str, chosen: Sequence[str]) -> tuple[BenchResult, list[Drawing]]:
    result = BenchResult(part, list(study.seeds), profile=study.profile.name)
    baselines = tune_all(study, TASK, ("paper", "strong"))
    specs = {
        (regime, axis, name): baseline.with_method(method, **more)
        for regime, baseline in baselines.items()
        for axis in chosen
        for name, (method, more) in variants_in(regime)[axis].items()
    }
    done = study.train(specs.values())
    found: dict[str, Found] = {regime: {} for regime in baselines}
    for (regime, axis, name), train in specs.items():
        found[regime][axis, name] = done[train]
    for regime, baseline in baselines.items():
        _report(result, baseline, found[regime])
        result.notes.append(baseline.description)
    result.notes += [
        "Rounds and virtual seconds to vanilla's target: "
        f"{baselines['paper'].task.description}. Each variant differs from vanilla only as its "
        "name says; local steps are W=5, R=5, xi=60. With several hosts, the host's fields are "
        "split between them, each with a Z of the same width.",
        *_findings(baselines, found),
    ]
    return result, [
        Drawing("variants", lambda: _draw(baselines, found, chosen)),
        Drawing("curves", lambda: _curves(baselines, found, chosen)),
    ]


def _report(result: BenchResult, baseline: Baseline, found: Found) -> None:
    regime, target = baseline.vanilla.regime, baseline.target
    rounds, seconds = rounds_to(baseline.runs, target), seconds_to(baseline.runs, target)
    rows = {("vanilla", "one round at a time, fp32"): baseline.runs, **found}
    for (axis, name), runs in rows.items():
        own_rounds, own_seconds = rounds_to(runs, target), seconds_to(runs, target)
        result.rows.append(
            {
                "optimizer": f"{regime}, lr {baseline.vanilla.lr:g}",
                "axis": axis,
                "variant": name,
                "rounds": own_rounds.mean,
                "deviation": own_rounds.deviation,
                "rounds over vanilla": ratio(own_rounds.mean, rounds.mean),
                "by seed": [None if r is None else round(r) for r in own_rounds.by_seed],
                "best AUC by seed": [round(run.best_by(math.inf), 4) for run in runs],
                "seconds": own_seconds.mean,
                "speed-up": ratio(seconds.mean, own_seconds.mean),
            }
        )
    figures = {
        "depth4_speedup": ("rounds in flight", "depth 4"),
        "codec_4bit_speedup": ("codec", "4bit"),
        "guest_only_speedup": ("local steps by", "the guest"),
        "together_cosine_speedup": (_COMBINED, "guest, cosine, depth 4, 4bit"),
        "both_together_cosine_speedup": (_COMBINED, "both, cosine, depth 4, 4bit"),
        "together_speedup": (_COMBINED, "guest R=3, compensated, depth 6, 2bit"),
        "both_together_speedup": (_COMBINED, "both, compensated, depth 6, 2bit"),
        "both_r3_together_speedup": (_COMBINED, "both R=3, compensated, depth 6, 4bit"),
        "auto_speedup": (_COMBINED, "auto"),
    }
    for figure, which in figures.items():
        if which not in found:
            continue
        name = figure if regime == "paper" else f"{figure}_strongest"
        result.figures[name] = ratio(seconds.mean, seconds_to(found[which], target).mean)


def _findings(baselines: dict[str, Baseline], found: dict[str, Found]) -> list[str]:
    """For each regime: at which party local steps help most, and what auto chose."""
    sentences = []
    for regime, baseline in baselines.items():
        chosen = "; ".join(found[regime][_COMBINED, "auto"][0].choices)
        sentences.append(f"auto's choices in the {regime} regime, with the first seed: {chosen}.")
        if all(axis == _COMBINED for axis, _ in found[regime]):
            continue
        rounds = {"nobody": rounds_to(baseline.runs, baseline.target).mean} | {
            name: rounds_to(found[regime]["local steps by", name], baseline.target).mean
            for name in VARIANTS["local steps by"]
        }
        reached = {name: count for name, count in rounds.items() if count is not None}
        order = ", ".join(f"{n} {c:.0f}" for n, c in sorted(reached.items(), key=lambda p: p[1]))
        never = [name for name, count in rounds.items() if count is None]
        text = f"; target never reached: {', '.join(never)}" if never else ""
        sentences.append(
            f"Rounds in the {regime} regime by the party with local steps, fewest first: "
            f"{order}{text}."
        )
    return sentences


def _draw(baselines: dict[str, Baseline], found: dict[str, Found], chosen: Sequence[str]) -> Figure:
    height = 1.6 + len(chosen)
    figure, ((left, right),) = new_figure(1, 2, 10.5, height, sharey=True)
    for axes, measure_, inverse in ((left, rounds_to, False), (right, seconds_to, True)):
        rows = []
        for axis in chosen:
            rows.append(DotRow(axis))
            names = dict.fromkeys(name for r in baselines for name in variants_in(r)[axis])
            for name in names:
                dots = []
                for regime, baseline in baselines.items():
                    if (axis, name) not in found[regime]:
                        continue
                    colour, marker, offset = _MARKS[regime]
                    vanilla = measure_(baseline.runs, baseline.target).mean
                    spread = measure_(found[regime][axis, name], baseline.target)
                    value, deviation = (ratio(s, vanilla) for s in (spread.mean, spread.deviation))
                    if inverse:
                        value, deviation = ratio(vanilla, spread.mean), None
                    text = spread.describe("")
                    dots.append(
                        Dot(value, deviation, colour, marker=marker, text=text, offset=offset)
                    )
                rows.append(DotRow(name, dots))
        draw_dots(axes, rows)
        axes.axvline(1, color="#999999", lw=0.8)
    left.set_xlim(left=0)
    left.set_xlabel("rounds to the same AUC, over vanilla's (fewer is better)")
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter("{x:g}x")
    right.set_xlabel("speed-up in virtual seconds to the same AUC (more is better)")
    right.set_title("On a link of 300 Mbps, 40 ms round trip")
    draw_marker_legend(
        left, [("● paper's optimizer", BLUE), ("■ strongest vanilla's optimizer", VERMILLION)]
    )
    return figure


def _curves(
    baselines: dict[str, Baseline], found: dict[str, Found], chosen: Sequence[str]
) -> Figure:
    """Draw every seed: a mean would hide that seeds leave a plateau at very different rounds."""
    width = 2.8 * max(2, len(chosen))
    figure, grid = new_figure(len(baselines), len(chosen), width, 8.2, sharey="row")
    for row, (regime, baseline) in zip(grid, baselines.items(), strict=True):
        every = [one for runs in found[regime].values() for one in _seeds(runs, BLACK)]
        row[0].set_ylabel(f"held-out AUC, {regime} regime")
        for axes, axis in zip(row, chosen, strict=True):
            variants = variants_in(regime)[axis]
            shown = [("vanilla", baseline.runs, BLACK, ":")]
            for index, name in enumerate(variants):
                repeats, number = divmod(index, len(_COLOURS))
                colour, style = _COLOURS[number], "--" if repeats else "-"
                shown.append((name, found[regime][axis, name], colour, style))
            legend = []
            for name, runs, colour, style in shown:
                draw_series(axes, _seeds(runs, colour, style))
                text = rounds_to(runs, baseline.target).describe("rounds")
                legend.append(Series(f"{name}: {text}", colour, [], []))
            draw_legend(axes, legend, columns=1)
            frame_curves(axes, every, baseline.target)
            axes.set_title(axis.capitalize())
            axes.set_xlabel("communication rounds")
    draw_caption(
        figure,
        "One curve per seed. Dotted: vanilla. Dashed, under Hosts: with local steps. "
        "Horizontal: the target, at which all runs but vanilla's stop.",
    )
    return figure


def _seeds(runs: Sequence[Run], colour: str, style: str = "-") -> list[Series]:
    curves = [list(zip(*run.curve, strict=True)) or [(), (), ()] for run in runs]
    return [Series("", colour, rounds, aucs, style=style) for rounds, _, aucs in curves]
