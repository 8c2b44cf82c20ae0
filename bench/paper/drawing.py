"""Figures as a paper would print them: matplotlib with one style, drawn the same every time."""

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

# Okabe and Ito's colours, which readers of all kinds of sight tell apart.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#767676"
ORDERED = (GREEN, SKY, BLUE, VERMILLION)  # for the values of one setting, from the last on

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # it comes with matplotlib: the same on any machine
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
class LinkEmulator:
    """Something over x: its middle, and the range around it where there is one."""

    label: str
    colour: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: str = "-"
    marker: str = ""
    open: bool = False  # hollow marks: not measured here, or a variant of what was


@dataclass(frozen=True)
class Dot:
    """A value in a row of a figure, or where there is none, what to say instead."""

    value: float | None
    spread: float | None = None
    colour: str = BLUE
    open: bool = False
    marker: str = "o"
    told: str = ""
    below: float = 0.0  # the row's middle, in rows: for values of one row that may be alike


@dataclass(frozen=True)
class DotRow:
    """A row of a figure and its values; one without any is a heading."""

    label: str
    dots: Sequence[Dot] = ()


class Artefact(Protocol):
    """What a part writes beside its result."""

    def save(self, folder: Path, part: str) -> list[Path]:
        """Write it, under names that begin with the part's; none where it cannot be drawn."""
        ...


@dataclass(frozen=True)
class Drawing:
    """A figure, drawn when it is saved, and the name of its files after that of the part."""

    name: str
    draw: Callable[[], Figure]

    def save(self, folder: Path, part: str) -> list[Path]:
        """An SVG and a PNG of twice a screen's density; nothing in them depends on the day."""
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
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def new_figure(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """An empty figure of so many panels, in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False, **options)]


def draw_caption(figure: Figure, text: str) -> None:
    """How a figure is to be read, above it."""
    figure.suptitle(text, fontsize=8.5, x=0.01, ha="left")


def draw_lines(axes: Axes, lines: Sequence[LinkEmulator]) -> None:
    """Lines with the range around them."""
    for line in lines:
        if line.low:
            axes.fill_between(line.xs, line.low, line.high, color=line.colour, alpha=0.15, lw=0)
        axes.plot(
            line.xs,
            line.ys,
            line.style,
            color=line.colour,
            marker=line.marker or None,
            markersize=4.5,
            markerfacecolor="white" if line.open else line.colour,
        )


def draw_key(axes: Axes, lines: Sequence[LinkEmulator], columns: int = 2) -> None:
    """Names in the colours of what they name, below the panel, where nothing is hidden by them."""
    for index, line in enumerate(lines):
        across, down = index % columns, index // columns
        axes.annotate(
            line.label,
            (across / columns, 0),
            xycoords="axes fraction",
            xytext=(0, -36 - 11.5 * down),
            textcoords="offset points",
            color=line.colour,
            va="top",
            fontsize=8,
        )


def draw_marks(axes: Axes, marks: Sequence[tuple[str, str]]) -> None:
    """What the marks of a panel stand for, in their colours, above its right end."""
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
    """Values by row, from the top."""
    for place, row in enumerate(rows):
        for dot in row.dots:
            y = place + dot.below
            if dot.value is None:
                axes.text(
                    0.99,
                    y,
                    dot.told,
                    color=dot.colour,
                    fontsize=7,
                    transform=axes.get_yaxis_transform(),
                    ha="right",
                    va="center",
                    bbox={"fc": "white", "ec": "none", "pad": 1},
                    zorder=1.9,  # over the grid, under what was reached
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
    # A panel that shares its rows with another has no labels of its own.
    for tick, row in zip(axes.get_yticklabels(), rows, strict=False):
        tick.set_fontweight("normal" if row.dots else "bold")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def curve_line(
    runs: Sequence[Run], label: str, colour: str, *, over: str = "rounds", style: str = "-"
) -> LinkEmulator:
    """The AUC of several seeds, mean and range, as far as all of them went."""
    points = list(zip(*(run.curve for run in runs), strict=False))
    at = 0 if over == "rounds" else 1
    return LinkEmulator(
        label,
        colour,
        [mean(point[at] for point in seeds) for seeds in points],
        [mean(point[2] for point in seeds) for seeds in points],
        [min(point[2] for point in seeds) for seeds in points],
        [max(point[2] for point in seeds) for seeds in points],
        style,
    )


def frame_curves(axes: Axes, lines: Sequence[LinkEmulator], target: float) -> None:
    """Limits that leave out the steep first evaluations, and the target as a line."""
    axes.axhline(target, color=GREY, lw=0.8, ls=(0, (4, 3)))
    tops = [max(line.ys) for line in lines if line.ys] or [target]
    starts = [line.ys[0] for line in lines if line.ys] or [0.5]
    floor = max(min(starts), target - 4 * (max(tops) - target + 0.01), 0.45)
    axes.set_ylim(min(floor, target - 0.01), max(tops) + 0.12 * (max(tops) - floor))
    axes.set_xlim(left=0)
