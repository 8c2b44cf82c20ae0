"""Statistics of a column's training rows, updated block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MISSING_SHARE = 0.95
_WINDOW = 65_536


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

    def result(self) -> tuple[float, float]:
        """Mean and standard deviation; 1 instead of a deviation of 0, to allow division by it."""
        if len(self._rest):
            self._merge(self._rest)
            self._rest = np.empty(0)
        deviation = float(np.sqrt(self._squares / max(self._count, 1)))
        return self._mean, deviation or 1.0


class ColumnSummary:
    """The range and the number of missing values of a column's training rows, for warnings."""

    def __init__(self) -> None:
        self.rows = 0
        self.missing = 0
        self._min = np.inf
        self._max = -np.inf

    def add(self, values: npt.NDArray[Any], missing: int) -> None:
        """Add the training rows of a block, of which `missing` have no value."""
        self.rows += len(values)
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
