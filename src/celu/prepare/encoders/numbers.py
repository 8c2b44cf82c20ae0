"""The encoder of numbers: fill missing values, then log, then standardise, as declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from celu.config.columns import FittedNumber, Number
from celu.prepare.encoders.encoder import MAX_FLOAT32, Mask
from celu.prepare.encoders.filling import Filling
from celu.prepare.encoders.statistics import ColumnSummary, Floats, RunningMoments
from celu.prepare.parsing import Kind


class NumberEncoder:
    """Numbers as float32. A `FittedNumber` is applied as it is; a `Number` is fitted."""

    kind: Kind = "number"
    unseen = 0

    def __init__(self, name: str, number: Number) -> None:
        self.name = name
        self.columns = number.columns(name)
        self._number = number
        self._fitted = number if isinstance(number, FittedNumber) else None
        self._largest = float(np.finfo(np.float64).max) if number.log else MAX_FLOAT32
        # A statistic is not known while rows are read, and an indicator needs the missing ones.
        self._fills_later = number.indicator or isinstance(number.missing, str)
        self._filling = Filling(number.missing, self._fitted.fill if self._fitted else None)
        self._moments = RunningMoments()
        self._summary = ColumnSummary()
        self._missing = 0
        self._not_finite = 0
        self._result: FittedNumber | None = self._fitted

    @property
    def num_missing(self) -> int:
        """The number of rows without a value: training rows, or all where nothing is fitted."""
        return self._summary.missing

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Return float32 as stored, or float64 with NaN if missing ones are filled later."""
        values = array.to_numpy(zero_copy_only=False)
        missing = np.isnan(values)
        in_range = np.abs(values) <= self._largest  # False for NaN
        self._missing += array.null_count
        self._not_finite += int((~in_range).sum()) - array.null_count
        if self._fitted is not None:
            self._summary.missing += array.null_count
        if self._fills_later:
            if self._fitted is None:
                self._add_present(values[train & in_range], int(missing[train].sum()))
            return np.asarray(values, np.float64)
        values = self._log(np.where(missing, self._filling.value, values))
        if self._fitted is not None:
            return self._scale(values, self._fitted.mean, self._fitted.deviation)
        train_values = values[train]
        self._summary.add(train_values, int(missing[train].sum()))
        if not self._number.standardise:
            return self._scale(values, 0.0, 1.0)
        self._moments.add(train_values)
        return values

    def _add_present(self, values: Floats, num_missing: int) -> None:
        """Add training rows, some of which are filled later."""
        is_filled = num_missing and self._filling.is_known
        seen = np.append(values, self._filling.value) if is_filled else values
        self._summary.add(seen, num_missing, rows=len(values) + num_missing)
        self._filling.add(values)
        if self._number.standardise:
            self._moments.add(self._log(values))

    def transform(self, spilled: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Fill and standardise the values that `fit` returned as float64."""
        if spilled.dtype == np.float32:
            return [spilled]
        fitted = self.fitted()
        if not self._fills_later:
            return [self._scale(spilled, fitted.mean, fitted.deviation)]
        missing = np.isnan(spilled)
        values = self._log(np.where(missing, self._filling.value, spilled))
        numbers = self._scale(values, fitted.mean, fitted.deviation)
        return [numbers, *([missing.astype(np.float32)] if self._number.indicator else [])]

    def problems(self) -> list[str]:
        """Missing values without a declared replacement; NaN and Inf."""
        found = []
        if self._missing and self._number.missing is None:
            advice = "declare a replacement as missing"
            if self._fitted is not None:  # the model knows none
                advice = f"leave those rows out, or {advice}, prepare all rows and train again"
            found.append(
                f"column {self.name!r}: expected a number in every row, got {self._missing:,} rows "
                f"without; {advice}"
            )
        if self._not_finite:
            found.append(
                f"column {self.name!r}: expected finite numbers within float32, "
                f"got {self._not_finite:,} that are not; if they mean missing values, leave them "
                "empty, or list their text in missing of [source]"
            )
        self._missing = self._not_finite = 0
        return found

    def warnings(self) -> list[str]:
        """A column that is constant or nearly empty."""
        return self._summary.warnings(self.name)

    def fitted(self) -> FittedNumber:
        """The declaration with what was fitted on the training rows; final when called first."""
        if self._result is None:
            fill = self._filling.value
            mean, deviation = 0.0, 1.0
            if self._number.standardise:
                if self._fills_later:
                    self._moments.add_equal(float(self._log(np.array(fill))), self.num_missing)
                mean, deviation = self._moments.result()
            self._result = FittedNumber(
                **self._number.model_dump(),
                mean=mean,
                deviation=deviation,
                fill=None if self._filling.is_known else fill,
            )
        return self._result

    def _log(self, values: Floats) -> Floats:
        if not self._number.log:
            return values
        with np.errstate(divide="ignore"):  # np.where replaces these values
            return np.where(values > -1, np.log(np.maximum(values, -1.0) + 1.0), -1.0)

    def _scale(self, values: Floats, mean: float, deviation: float) -> npt.NDArray[np.float32]:
        if self._number.standardise:
            values = (values - mean) / deviation
            self._not_finite += int((np.abs(values) > MAX_FLOAT32).sum())
        with np.errstate(over="ignore"):  # counted already
            return values.astype(np.float32)
