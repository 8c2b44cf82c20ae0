"""The encoder of numbers as categories: codes of ranges with about equally many training rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from celu.config.columns import Category, FittedCategory
from celu.prepare.encoders.encoder import Mask
from celu.prepare.encoders.statistics import ColumnSummary, Floats, QuantileSketch
from celu.prepare.parsing import Kind


class QuantileEncoder:
    """Codes by quantile. A `FittedCategory` is applied as it is; a `Category` is fitted."""

    kind: Kind = "number"
    unseen = 0

    def __init__(self, name: str, category: Category) -> None:
        assert category.quantiles is not None
        self.name = name
        self.columns = [name]
        self._quantiles = category.quantiles
        self._edges = category.edges if isinstance(category, FittedCategory) else None
        self._is_fitted = self._edges is not None
        self._sketch = QuantileSketch()
        self._lowest = np.inf
        self._summary = ColumnSummary()
        self._not_finite = 0

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Return the numbers, NaN where missing, or the codes if the edges are known."""
        values: Floats = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        finite = np.isfinite(values)
        self._not_finite += int((~finite).sum()) - array.null_count
        if self._is_fitted:
            return self._codes(values)
        present = values[train & finite]
        self._summary.add(present, int(np.isnan(values[train]).sum()), rows=int(train.sum()))
        self._sketch.add(present)
        if len(present):
            self._lowest = min(self._lowest, float(present.min()))
        return values

    def transform(self, spilled: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """The codes of the numbers that `fit` returned."""
        return [spilled if self._is_fitted else self._codes(spilled)]

    def _codes(self, values: Floats) -> npt.NDArray[np.int32]:
        codes = np.searchsorted(np.array(self.edges()), values, side="right") + 1
        return np.where(np.isnan(values), 0, codes).astype(np.int32)

    def problems(self) -> list[str]:
        """NaN and Inf; a missing number has a code."""
        count, self._not_finite = self._not_finite, 0
        if not count:
            return []
        return [f"column {self.name!r}: expected finite numbers, got {count:,} that are not"]

    def warnings(self) -> list[str]:
        """A column that is constant or nearly empty."""
        return self._summary.warnings(self.name)

    def edges(self) -> list[float]:
        """Where each range but the first begins; final when called first.

        A number that is very frequent is the edge of several quantiles: it counts once.
        """
        if self._edges is None:
            fractions = [i / self._quantiles for i in range(1, self._quantiles)]
            found = self._sketch.quantiles(fractions)
            self._edges = sorted({edge for edge in found if edge > self._lowest})
        return self._edges
