"""Downsamples the series of a chart, preserving its shape and extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

MAX_POINTS = 2000


def downsample(values: Sequence[float | None], max_points: int = MAX_POINTS) -> list[int]:
    """Indices of the points to draw, ascending: all of them, or at most about `max_points`.

    The values are cut into buckets; the first, last, lowest and highest of each stay.
    """
    if len(values) <= max_points:
        return list(range(len(values)))
    num_buckets = max(1, max_points // 4)
    edges = [round(i * len(values) / num_buckets) for i in range(num_buckets + 1)]
    chosen: set[int] = set()
    for start, stop in pairwise(edges):
        finite = [i for i in range(start, stop) if _is_finite(values[i])]
        chosen |= {start, stop - 1}
        if finite:
            chosen |= {min(finite, key=lambda i: values[i] or 0.0)}
            chosen |= {max(finite, key=lambda i: values[i] or 0.0)}
    return sorted(chosen)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
