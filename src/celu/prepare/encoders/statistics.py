"""Statistics of a column's training rows, updated block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MISSING_SHARE = 0.95
_WINDOW = 65_536
_BUFFER = 32_768  # values of a level of a sketch


class RunningMoments:
    """Mean and standard deviation of a stream, merged window by window.

    The merge is Chan, Golub and LeVeque's. Windows have a fixed length, unlike blocks: the last
    bit of the result does not depend on the block size.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0
        self._rest: Floats = np.empty(0)

    def add(self, values: Floats) -> None:
        """Add values to the stream."""
        values = np.concatenate((self._rest, values))
        whole = len(values) // _WINDOW * _WINDOW
        for start in range(0, whole, _WINDOW):
            self._merge(values[start : start + _WINDOW])
        self._rest = values[whole:].copy()

    def _merge(self, values: Floats) -> None:
        mean = float(values.mean())
        count = self._count + len(values)
        shift = mean - self._mean
        self._squares += float(np.square(values - mean).sum())
        self._squares += shift * shift * self._count * len(values) / count
        self._mean += shift * len(values) / count
        self._count = count

    def add_equal(self, value: float, count: int) -> None:
        """Add a value to the stream, `count` times."""
        self._flush()
        if count:
            total = self._count + count
            shift = value - self._mean
            self._squares += shift * shift * self._count * count / total
            self._mean += shift * count / total
            self._count = total

    def _flush(self) -> None:
        if len(self._rest):
            self._merge(self._rest)
            self._rest = np.empty(0)

    def result(self) -> tuple[float, float]:
        """Mean and standard deviation; 1 instead of a deviation of 0, to allow division by it."""
        self._flush()
        deviation = float(np.sqrt(self._squares / max(self._count, 1)))
        return self._mean, deviation or 1.0


class QuantileSketch:
    """Quantiles of a stream in bounded memory: exact for up to _BUFFER values.

    Two full buffers of a level are merged, and every second value moves to the next level, where it
    stands for twice as many (Manku, Rajagopalan and Lindsay, SIGMOD 1998). Each level adds less
    than 1 / (2 * _BUFFER) to the error of a rank: together less than 0.02 % for a billion values.
    Buffers have a fixed length, unlike blocks: the result does not depend on the block size.
    """

    def __init__(self) -> None:
        self._rest: Floats = np.empty(0)
        self._levels: list[Floats | None] = []  # at most one full buffer waits in each
        self._offsets: list[int] = []  # alternate, so that errors cancel out

    def add(self, values: Floats) -> None:
        """Add values to the stream."""
        values = np.concatenate((self._rest, values))
        whole = len(values) // _BUFFER * _BUFFER
        for start in range(0, whole, _BUFFER):
            self._push(0, values[start : start + _BUFFER].copy())
        self._rest = values[whole:].copy()

    def _push(self, level: int, values: Floats) -> None:
        if level == len(self._levels):
            self._levels.append(None)
            self._offsets.append(0)
        waiting = self._levels[level]
        if waiting is None:
            self._levels[level] = values
            return
        merged = np.sort(np.concatenate((waiting, values)))
        offset = self._offsets[level]
        self._levels[level], self._offsets[level] = None, 1 - offset
        self._push(level + 1, merged[offset::2])

    def quantiles(self, fractions: Sequence[float]) -> list[float]:
        """The values with these fractions of the stream below them; none for an empty stream.

        Between two values it is their middle, so 0.5 gives the median.
        """
        parts = [(self._rest, 1)]
        parts += [(b, 1 << level) for level, b in enumerate(self._levels) if b is not None]
        values = np.concatenate([part for part, _ in parts])
        if not len(values):
            return []
        weights = np.concatenate([np.full(len(part), weight) for part, weight in parts])
        order = np.argsort(values, kind="stable")
        values, ranks = values[order], np.cumsum(weights[order])
        wanted = np.array(fractions) * ranks[-1]
        lower = np.minimum(np.searchsorted(ranks, wanted), len(values) - 1)
        upper = np.minimum(lower + (ranks[lower] == wanted), len(values) - 1)
        # Halved first: the sum of two large values may overflow.
        middles = values[lower] / 2 + values[upper] / 2
        found: list[float] = np.where(lower == upper, values[lower], middles).tolist()
        return found


class ColumnSummary:
    """The range and the number of missing values of a column's training rows, for warnings."""

    def __init__(self) -> None:
        self.rows = 0
        self.missing = 0
        self._min = np.inf
        self._max = -np.inf

    def add(self, values: npt.NDArray[Any], missing: int, rows: int | None = None) -> None:
        """Add the training rows of a block, of which `missing` have no value.

        `rows` is their number, if `values` are not those of all rows.
        """
        self.rows += len(values) if rows is None else rows
        self.missing += missing
        if len(values):
            self._min = min(self._min, float(values.min()))
            self._max = max(self._max, float(values.max()))

    def warnings(self, name: str) -> list[str]:
        """A column that is constant or nearly empty."""
        if not self.rows:
            return []
        if self.missing == self.rows:
            return [f"column {name!r}: every value is missing in the training rows"]
        if self._min == self._max:
            return [f"column {name!r}: all training rows have the same value"]
        if self.missing / self.rows >= MISSING_SHARE:
            share = self.missing / self.rows
            return [f"column {name!r}: {share:.1%} of the training rows have no value"]
        return []
