"""Chart series of a run: each point has a round, seconds and bytes, so any of them can be x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from celu.events import Evaluated, RoundDone
from celu.record.downsample import MAX_POINTS, downsample

_BINS = 120  # of a throughput series
_E = TypeVar("_E", RoundDone, Evaluated)


def learning_series(
    rounds: Sequence[RoundDone], evaluations: Sequence[Evaluated], max_points: int = MAX_POINTS
) -> dict[str, Any]:
    """Metrics, loss, learning rate, staleness and similarity over these events, downsampled."""
    metrics = {name: None for event in evaluations for name in event.metrics}
    return {
        "held_out": {name: series(evaluations, _metric(name), max_points) for name in metrics},
        "loss": series(rounds, lambda event: event.loss, max_points),
        "lr": series(rounds, lambda event: event.lr, max_points),
        "staleness": series(rounds, lambda event: event.staleness, max_points),
        "similarity": similarity_series(rounds, max_points),
    }


def throughput_series(rounds: Sequence[RoundDone]) -> dict[str, Any]:
    """The links' throughput over a whole run, in each direction."""
    return {
        "sent": throughput(rounds, lambda event: event.bytes_sent),
        "received": throughput(rounds, lambda event: event.bytes_received),
    }


def series(
    events: Sequence[_E], value: Callable[[_E], float | None], max_points: int
) -> dict[str, Any]:
    """A value at each event that has one, downsampled."""
    with_value = [event for event in events if value(event) is not None]
    shown = [with_value[i] for i in downsample([value(event) for event in with_value], max_points)]
    return {**_axes(shown), "y": [value(event) for event in shown]}


def similarity_series(rounds: Sequence[RoundDone], max_points: int) -> dict[str, Any]:
    """Similarity quantiles, lowest first, at each round that weighted cached rows."""
    weighted = [event for event in rounds if event.similarity_quantiles]
    # Downsampled by the lower quartile, the quantile that shows best how stale the cache is.
    quartiles = [(event.similarity_quantiles or [])[2] for event in weighted]
    shown = [weighted[i] for i in downsample(quartiles, max_points)]
    rows = [event.similarity_quantiles or [] for event in shown]
    return {**_axes(shown), "quantiles": [list(column) for column in zip(*rows, strict=True)]}


def throughput(
    rounds: Sequence[RoundDone], total_bytes: Callable[[RoundDone], int]
) -> dict[str, Any]:
    """Mbps in bins of equal length, from a running total of bytes."""
    times = np.array([0.0, *(event.seconds for event in rounds)])
    totals = np.array([0.0, *(float(total_bytes(event)) for event in rounds)])
    if len(rounds) < 2 or times[-1] <= 0:
        return {"seconds": [], "y": []}
    edges = np.linspace(0.0, times[-1], min(_BINS, len(rounds)) + 1)
    with np.errstate(
        divide="ignore", invalid="ignore", over="ignore"
    ):  # of times that nearly agree
        mbps = np.diff(np.interp(edges, times, totals)) * 8e-6 / np.diff(edges)
    centers = (edges[1:] + edges[:-1]) / 2
    return {"seconds": _rounded(centers), "y": _rounded(mbps)}


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
