"""Confidence intervals by a bootstrap over rows.

A resample gives each row a weight from Poisson(1), independently (the Poisson bootstrap). It equals
drawing N rows with replacement, except that the number of drawn rows varies around N; metrics do
not depend on that number. The weights of a few resamples are held at a time, one byte each:
16 bytes per row for millions of rows. Nothing depends on timing: equal seeds give equal intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from celu.metrics.measure import Measure
from celu.metrics.ranking import Values, Weights

LEVEL = 0.95
MIN_DEFINED = 0.9  # the share of resamples in which a metric must be defined
_BLOCK_CELLS = 1 << 18  # rows times resamples of a block
_MIN_BLOCK, _MAX_BLOCK = 16, 128
_DRAWN_ROWS = 1 << 14
_STEPS = 1 << 16  # a draw is one of this many


def _poisson_table() -> npt.NDArray[np.uint8]:
    """A weight for each value of a 16-bit draw, in Poisson's proportions to 1/65536."""
    cumulated, probability = 0.0, math.exp(-1)
    table = np.zeros(_STEPS, np.uint8)
    for weight in range(1, 9):
        cumulated += probability
        probability /= weight
        table[round(cumulated * _STEPS) :] = weight
    return table


def bootstrap(
    measures: Sequence[Measure],
    num_rows: int,
    resamples: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Values]]:
    """Each measure's metrics in each resample; all measures see the same resamples.

    `progress` is called with the number of resamples done.
    """
    found: list[dict[str, list[Values]]] = [{} for _ in measures]
    done = 0
    for weights_NR in _blocks(num_rows, resamples, seed):
        for measure, values in zip(measures, found, strict=True):
            for name, value_R in measure.measure(weights_NR).items():
                values.setdefault(name, []).append(value_R)
        done += weights_NR.shape[1]
        progress(done)
    return [{name: np.concatenate(parts) for name, parts in one.items()} for one in found]


def _blocks(num_rows: int, resamples: int, seed: int) -> Iterator[Weights]:
    size = min(max(_BLOCK_CELLS // num_rows, _MIN_BLOCK), _MAX_BLOCK)
    table = _poisson_table()
    for start in range(0, resamples, size):
        random = np.random.default_rng([seed, start])
        weights_NR = np.empty((num_rows, min(size, resamples - start)), np.uint8)
        for row in range(0, num_rows, _DRAWN_ROWS):
            part = weights_NR[row : row + _DRAWN_ROWS]
            part[:] = table[random.integers(_STEPS, size=part.shape, dtype=np.uint16)]
        yield weights_NR


def interval(values: Values) -> tuple[float, float] | None:
    """The percentile interval; None if too few resamples define the metric."""
    defined = values[~np.isnan(values)]
    if not len(defined) or len(defined) < MIN_DEFINED * len(values):
        return None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
