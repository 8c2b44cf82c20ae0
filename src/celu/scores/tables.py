"""Calibration bins, deciles and curves: what the tables and charts of an evaluation show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from celu.metrics.ranking import Ranking

NUM_BINS = 10
_CURVE_POINTS = 201
_Z = 1.959964  # of a 95 % interval of a normal distribution


@dataclass(frozen=True)
class Bin:
    """Rows with similar scores; `low` and `high` are a 95 % interval of `mean_label`.

    `weight` is how much the rows count together: their number, unless they have weights.
    """

    rows: int
    mean_score: float
    mean_label: float
    low: float
    high: float
    weight: float


@dataclass(frozen=True)
class Curve:
    """Points of a curve; x ascends."""

    x: list[float]
    y: list[float]


def make_bins(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    weights: npt.NDArray[np.float64] | None = None,
    *,
    are_shares: bool,
) -> tuple[Bin, ...]:
    """Up to ten bins with nearly the same number of rows, by ascending score.

    Rows with equal scores are in one bin, so bins may differ in size. With `are_shares`, labels are
    0 or 1, and the interval is Wilson's, which stays within 0 and 1. Means and intervals are of
    rows with these `weights`; rows of weight 0 are in no bin.
    """
    if weights is not None:
        counts = weights > 0
        scores, labels, weights = scores[counts], labels[counts], weights[counts]
    order = np.argsort(scores)
    ordered = scores[order]
    is_start = np.append(True, ordered[1:] != ordered[:-1])
    starts = np.flatnonzero(is_start)
    ends = np.append(starts[1:], len(scores))
    of_tie = NUM_BINS * (starts + ends - 1) // (2 * len(scores))  # by the middle of the tie
    cuts = np.append(starts[np.append(True, of_tie[1:] != of_tie[:-1])], len(scores))
    found = []
    for start, stop in pairwise(cuts):
        rows = order[start:stop]
        inside = np.ones(len(rows)) if weights is None else weights[rows]
        found.append(_bin(scores[rows], labels[rows], inside, are_shares=are_shares))
    return tuple(found)


def _bin(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    weights: npt.NDArray[np.float64],
    *,
    are_shares: bool,
) -> Bin:
    weight = float(weights.sum())
    mean_score = float((scores.astype(np.float64) * weights).sum() / weight)
    mean = float((labels.astype(np.float64) * weights).sum() / weight)
    # As many rows of equal weight would have a mean of the same variance.
    rows = weight**2 / float((weights**2).sum())
    if are_shares:
        centre = (mean + _Z**2 / (2 * rows)) / (1 + _Z**2 / rows)
        inner = mean * (1 - mean) / rows + _Z**2 / (4 * rows**2)
        half = _Z * math.sqrt(inner) / (1 + _Z**2 / rows)
    else:
        centre = mean
        variance = float((weights * (labels - mean) ** 2).sum() / weight)
        half = _Z * math.sqrt(variance / (rows - 1)) if rows > 1 else math.inf
    return Bin(len(labels), mean_score, mean, centre - half, centre + half, weight)


def calibration_error(bins: tuple[Bin, ...]) -> float:
    """The expected calibration error: mean |mean score - observed rate| of the bins, by weight."""
    gaps = sum(b.weight * abs(b.mean_score - b.mean_label) for b in bins)
    return gaps / sum(b.weight for b in bins)


def roc_curve(ranking: Ranking, weights: npt.NDArray[np.float64] | None = None) -> Curve:
    """The true positive rate over the false positive rate, at evenly spaced points."""
    true, false = ranking.curve(weights)
    grid = np.linspace(0, 1, _CURVE_POINTS)
    x, y = np.append(0, false / false[-1]), np.append(0, true / true[-1])
    # From the highest point of a vertical step to the lowest of the next.
    left = np.searchsorted(x, grid, side="right") - 1
    right = np.minimum(left + 1, len(x) - 1)
    share = (grid - x[left]) / np.where(right > left, x[right] - x[left], 1)
    return Curve(grid.tolist(), (y[left] + share * (y[right] - y[left])).tolist())


def precision_recall_curve(
    ranking: Ranking, weights: npt.NDArray[np.float64] | None = None
) -> Curve:
    """The precision at the first threshold that reaches each of evenly spaced recalls."""
    true, false = ranking.curve(weights)
    grid = np.linspace(0, 1, _CURVE_POINTS)[1:]
    at = np.searchsorted(true / true[-1], grid - 1e-12)
    return Curve(grid.tolist(), (true[at] / (true[at] + false[at])).tolist())
