"""Figures in the style of a paper: matplotlib with one style; the same input gives the same bytes.

Matplotlib is optional: without it `can_draw` is False and nothing is saved.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Protocol

from bench.curves import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#767676"
ORDERED = (GREEN, SKY, BLUE, VERMILLION)  # for N values of one setting: the last N

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same on any machine
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#333333",
    "axes.edgecolor": "#999999",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "celu",
}
_SCREEN_DPI = 100


@dataclass(frozen=True)
class Series:
    """The data of a line in a chart: y over x, with a band from `low` to `high` if given."""

    label: str
    colour: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: str = "-"
    marker: str = ""
    open: bool = False  # hollow markers: not measured here, or a variant


@dataclass(frozen=True)
class Dot:
    """A value in a row of a dot plot, or the text to show if there is no value."""

    value: float | None
    spread: float | None = None
    colour: str = BLUE
    open: bool = False
    marker: str = "o"
    text: str = ""
    offset: float = 0.0  # below the middle of the row, in rows: so that equal values do not overlap


@dataclass(frozen=True)
class DotRow:
    """A row of a dot plot; a row without dots is a heading."""

    label: str
    dots: Sequence[Dot] = ()


class Artefact(Protocol):
    """One or more files that a part writes in addition to its result."""

    def save(self, folder: Path, part: str) -> list[Path]:
        """Write it under names that begin with the part's; an empty list if it cannot be drawn."""
        ...


@dataclass(frozen=True)
class Drawing:
    """A figure that is drawn when it is saved, to PART-NAME.svg and PART-NAME.png."""

    name: str
    draw: Callable[[], Figure]

    def save(self, folder: Path, part: str) -> list[Path]:
        """Write an SVG, and a PNG at twice the screen resolution, both without a date."""
        if not can_draw():
            return []
        import matplotlib as mpl

        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{part}-{self.name}.{kind}" for kind in ("svg", "png")]
        with mpl.rc_context(_STYLE):
            figure = self.draw()
            figure.savefig(paths[0], metadata={"Date": None, "Creator": None})
            figure.savefig(paths[1], dpi=2 * _SCREEN_DPI, metadata={"Software": None})
        return paths


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def new_figure(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """An empty figure with a grid of panels; width and height in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False, **options)]


def draw_caption(figure: Figure, text: str) -> None:
    """Write how to read the figure, above it."""
    figure.suptitle(text, fontsize=8.5, x=0.01, ha="left")


def draw_series(axes: Axes, series: Sequence[Series]) -> None:
    """Draw lines with their bands."""
    for one in series:
        if one.low:
            axes.fill_between(one.xs, one.low, one.high, color=one.colour, alpha=0.15, lw=0)
        axes.plot(
            one.xs,
            one.ys,
            one.style,
            color=one.colour,
            marker=one.marker or None,
            markersize=4.5,
            markerfacecolor="white" if one.open else one.colour,
        )


def draw_legend(axes: Axes, series: Sequence[Series], columns: int = 2) -> None:
    """Write the labels in their colours, below the panel so that they hide no data."""
    for index, one in enumerate(series):
        across, down = index % columns, index // columns
        axes.annotate(
            one.label,
            (across / columns, 0),
            xycoords="axes fraction",
            xytext=(0, -36 - 11.5 * down),
            textcoords="offset points",
            color=one.colour,
            va="top",
            fontsize=8,
        )


def draw_marker_legend(axes: Axes, marks: Sequence[tuple[str, str]]) -> None:
    """Explain the markers, in their colours, above the right end of the panel."""
    right = 0.0
    for text, colour in reversed(marks):
        axes.annotate(
            text,
            (1, 1),
            xycoords="axes fraction",
            xytext=(-right, 6),
            textcoords="offset points",
            color=colour,
            ha="right",
        )
        right += 4.7 * len(text) + 8


def draw_dots(axes: Axes, rows: Sequence[DotRow]) -> None:
    """Draw a dot plot, the first row on top."""
    for index, row in enumerate(rows):
        for dot in row.dots:
            y = index + dot.offset
            if dot.value is None:
                axes.text(
                    0.99,
                    y,
                    dot.text,
                    color=dot.colour,
                    fontsize=7,
                    transform=axes.get_yaxis_transform(),
                    ha="right",
                    va="center",
                    bbox={"fc": "white", "ec": "none", "pad": 1},
                    zorder=1.9,  # above the grid, below the dots
                )
                continue
            axes.errorbar(
                dot.value,
                y,
                xerr=dot.spread,
                fmt=dot.marker,
                color=dot.colour,
                markersize=6.5 if dot.open else 5,
                markerfacecolor="none" if dot.open else dot.colour,
                markeredgewidth=1.2,
                elinewidth=1.2,
            )
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    # A panel that shares its rows with another has no tick labels.
    for tick, row in zip(axes.get_yticklabels(), rows, strict=False):
        tick.set_fontweight("normal" if row.dots else "bold")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def curve_series(
    runs: Sequence[Run], label: str, colour: str, *, over: str = "rounds", style: str = "-"
) -> Series:
    """Mean and range of the AUC over seeds, up to the last evaluation that all of them have."""
    points = list(zip(*(run.curve for run in runs), strict=False))
    at = 0 if over == "rounds" else 1
    return Series(
        label,
        colour,
        [mean(point[at] for point in seeds) for seeds in points],
        [mean(point[2] for point in seeds) for seeds in points],
        [min(point[2] for point in seeds) for seeds in points],
        [max(point[2] for point in seeds) for seeds in points],
        style,
    )


def frame_curves(axes: Axes, series: Sequence[Series], target: float) -> None:
    """Set limits that leave out the steep first evaluations, and draw the target."""
    axes.axhline(target, color=GREY, lw=0.8, ls=(0, (4, 3)))
    tops = [max(one.ys) for one in series if one.ys] or [target]
    starts = [one.ys[0] for one in series if one.ys] or [0.5]
    floor = max(min(starts), target - 4 * (max(tops) - target + 0.01), 0.45)
    axes.set_ylim(min(floor, target - 0.01), max(tops) + 0.12 * (max(tops) - floor))
    axes.set_xlim(left=0)
