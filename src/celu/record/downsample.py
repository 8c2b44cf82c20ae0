"""Fewer points of a line that look the same: extremes stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

MOST = 2000


def downsampled(values: Sequence[float | None], most: int = MOST) -> list[int]:
    """Which of a line's points to draw: all, or about `most`, ascending.

    Of each stretch the first, the last, the lowest and the highest stay.
    """
    if len(values) <= most:
        return list(range(len(values)))
    stretches = max(1, most // 4)
    edges = [round(i * len(values) / stretches) for i in range(stretches + 1)]
    kept: set[int] = set()
    for start, stop in pairwise(edges):
        finite = [i for i in range(start, stop) if _is_number(values[i])]
        kept |= {start, stop - 1}
        if finite:
            kept |= {min(finite, key=lambda i: values[i] or 0.0)}
            kept |= {max(finite, key=lambda i: values[i] or 0.0)}
    return sorted(kept)


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
