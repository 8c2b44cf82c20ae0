"""The encoder of numbers: fill missing values, then log, then standardise, as declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from celu.config.schema import FittedNumber, Number
from celu.prepare.encoders.encoder import MAX_FLOAT32, Mask
from celu.prepare.encoders.statistics import ColumnSummary, Floats, RunningMoments


class NumberEncoder:
    """Numbers as float32. A `FittedNumber` is applied as it is; a `Number` is fitted."""

    def __init__(self, name: str, number: Number) -> None:
        self.name = name
        self._number = number
        self._fitted = number if isinstance(number, FittedNumber) else None
        self._largest = float(np.finfo(np.float64).max) if number.log else MAX_FLOAT32
        self._moments = RunningMoments()
        self._summary = ColumnSummary()
        self._missing = 0
        self._not_finite = 0

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Return float32 as stored, or float64 if the mean is not known yet."""
        values = array.to_numpy(zero_copy_only=False)
        missing = np.isnan(values)
        in_range = np.abs(values) <= self._largest  # False for NaN
        self._missing += array.null_count
        self._not_finite += int((~in_range).sum()) - array.null_count
        values = np.where(missing, self._number.missing or 0.0, values)
        if self._number.log:
            with np.errstate(divide="ignore"):  # np.where replaces these values
                values = np.where(values > -1, np.log(np.maximum(values, -1.0) + 1.0), -1.0)
        if self._fitted is not None:
            return self._scale(values, self._fitted.mean, self._fitted.deviation)
        train_values = values[train]
        self._summary.add(train_values, int(missing[train].sum()))
        if not self._number.standardise:
            return self._scale(values, 0.0, 1.0)
        self._moments.add(train_values)
        return values

    def transform(self, spilled: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Standardise the values that `fit` returned as float64."""
        if spilled.dtype == np.float32:
            return spilled
        fitted = self.fitted()
        return self._scale(spilled, fitted.mean, fitted.deviation)

    def problems(self) -> list[str]:
        """Missing values without a declared replacement; NaN and Inf."""
        found = []
        if self._missing and self._number.missing is None:
            found.append(
                f"column {self.name!r}: expected a number in every row, got {self._missing:,} rows "
                "without; declare a replacement as missing"
            )
        if self._not_finite:
            found.append(
                f"column {self.name!r}: expected finite numbers within float32, "
                f"got {self._not_finite:,} that are not"
            )
        self._missing = self._not_finite = 0
        return found

    def warnings(self) -> list[str]:
        """A column that is constant or nearly empty."""
        return self._summary.warnings(self.name)

    def fitted(self) -> FittedNumber:
        """The declaration with the mean and deviation of the training rows."""
        if self._fitted is not None:
            return self._fitted
        mean, deviation = self._moments.result() if self._number.standardise else (0.0, 1.0)
        return FittedNumber(**self._number.model_dump(), mean=mean, deviation=deviation)

    def _scale(self, values: Floats, mean: float, deviation: float) -> npt.NDArray[np.float32]:
        if self._number.standardise:
            values = (values - mean) / deviation
            self._not_finite += int((np.abs(values) > MAX_FLOAT32).sum())
        with np.errstate(over="ignore"):  # counted already
            return values.astype(np.float32)
