"""The curves of a run's evaluations, as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from celu.errors import ConfigError
from celu.metrics.names import title_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AXES = {"round": "round", "seconds": "seconds of training", "bytes": "megabytes"}
_MAX_COLUMNS = 3  # as many panels are readable side by side on a page
_BYTES = ("bytes_sent", "bytes_received", "evaluation_bytes", "control_bytes")


def plot_evaluations(
    evaluations: Sequence[Mapping[str, float]],
    metrics: Sequence[str],
    over: str,
    best_round: int | None,
) -> Figure:
    """One panel for each metric, over rounds, seconds or bytes; raises ConfigError."""
    try:
        from celu.display.figure import InlineFigure
    except ImportError as error:
        raise ConfigError(
            "plot: the package matplotlib is not installed; "
            'install it with: pip install "celu[figures]"'
        ) from error
    if over not in _AXES:
        raise ConfigError(f"over: expected one of {', '.join(_AXES)}, got {over!r}")
    known = dict.fromkeys(name for evaluation in evaluations for name in evaluation)
    unknown = [name for name in metrics if name not in known]
    if unknown or not metrics:
        got = ", ".join(map(str, unknown)) or "none"
        raise ConfigError(
            f"metrics: expected metrics of evaluations, which only the guest has, got {got}"
        )
    columns = min(len(metrics), _MAX_COLUMNS)
    rows = -(-len(metrics) // columns)
    figure = InlineFigure(figsize=(4.5 * columns, 3.2 * rows), layout="constrained")
    for number, name in enumerate(metrics, start=1):
        axes = figure.add_subplot(rows, columns, number)
        points = [(_position(e, over), e[name]) for e in evaluations if name in e]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3)
        at = [_position(e, over) for e in evaluations if e["round"] == best_round]
        if at:
            axes.axvline(at[0], linestyle=":", color="gray", label=f"best: round {best_round}")
            axes.legend()
        axes.set(xlabel=_AXES[over], ylabel=title_of(name))
        axes.grid(alpha=0.3)
    return figure


def _position(evaluation: Mapping[str, float], over: str) -> float:
    if over == "bytes":
        return sum(evaluation.get(name, 0) for name in _BYTES) / 1e6
    return evaluation[over]
