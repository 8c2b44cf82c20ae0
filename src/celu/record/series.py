"""Lines of a run, each point with its round, seconds and bytes, so that any of them can be x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from celu.events import Evaluated, RoundDone
from celu.record.downsample import MOST, downsampled

_BINS = 120  # of a line's use over time
_E = TypeVar("_E", RoundDone, Evaluated)


def series_of(
    rounds: Sequence[RoundDone], evaluations: Sequence[Evaluated], most: int = MOST
) -> dict[str, Any]:
    """All lines of some events: a run's, or what came since; of about `most` points each."""
    metrics = {name: None for event in evaluations for name in event.metrics}
    return {
        "held_out": {name: line(evaluations, _metric(name), most) for name in metrics},
        "loss": line(rounds, lambda event: event.loss, most),
        "staleness": line(rounds, lambda event: event.staleness, most),
        "similarity": similarity(rounds, most),
    }


def use_of(rounds: Sequence[RoundDone]) -> dict[str, Any]:
    """What the links carried each way over the time of a whole run."""
    return {
        "sent": use(rounds, lambda event: event.bytes_sent),
        "received": use(rounds, lambda event: event.bytes_received),
    }


def line(events: Sequence[_E], value: Callable[[_E], float | None], most: int) -> dict[str, Any]:
    """What a value was at each event that has one; downsampled where there are very many."""
    having = [event for event in events if value(event) is not None]
    shown = [having[i] for i in downsampled([value(event) for event in having], most)]
    return {**_axes(shown), "y": [value(event) for event in shown]}


def similarity(rounds: Sequence[RoundDone], most: int) -> dict[str, Any]:
    """The quantiles of the similarity at each round that weighted something, lowest first."""
    having = [event for event in rounds if event.similarity_quantiles]
    # By the lower quartile: of all quantiles it says most of how far the cache is off.
    quartiles = [(event.similarity_quantiles or [])[2] for event in having]
    shown = [having[i] for i in downsampled(quartiles, most)]
    rows = [event.similarity_quantiles or [] for event in shown]
    return {**_axes(shown), "quantiles": [list(column) for column in zip(*rows, strict=True)]}


def use(rounds: Sequence[RoundDone], carried: Callable[[RoundDone], int]) -> dict[str, Any]:
    """Megabits a second over time, from a count of bytes, in stretches of equal length."""
    times = np.array([0.0, *(event.seconds for event in rounds)])
    counts = np.array([0.0, *(float(carried(event)) for event in rounds)])
    if len(rounds) < 2 or times[-1] <= 0:
        return {"seconds": [], "y": []}
    edges = np.linspace(0.0, times[-1], min(_BINS, len(rounds)) + 1)
    mbps = np.diff(np.interp(edges, times, counts)) * 8e-6 / np.diff(edges)
    middles = (edges[1:] + edges[:-1]) / 2
    return {"seconds": _rounded(middles), "y": _rounded(mbps)}


def _metric(name: str) -> Callable[[Evaluated], float | None]:
    return lambda event: event.metrics.get(name)


def _axes(events: Sequence[RoundDone] | Sequence[Evaluated]) -> dict[str, Any]:
    return {
        "round": [event.round for event in events],
        "seconds": [event.seconds for event in events],
        "bytes": [event.bytes for event in events],
    }


def _rounded(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    return [round(float(value), 4) for value in values]
