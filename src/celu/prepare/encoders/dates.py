"""The encoder of dates and times: each declared part as a number, in UTC."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from celu.config.columns import Date, DatePart, FittedDate
from celu.prepare.encoders.encoder import Mask
from celu.prepare.encoders.filling import Filling
from celu.prepare.encoders.statistics import ColumnSummary, Floats, RunningMoments
from celu.prepare.parsing import FORMAT_ADVICE, Kind

_UTC = datetime.UTC
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_DAY = 86_400
_MONDAY = 3  # 1970 began on a Thursday
_RANGE = tuple(
    (datetime.datetime(year, 1, 1, tzinfo=_UTC) - _EPOCH).total_seconds() for year in (1, 9999)
)


class DateEncoder:
    """Parts as float32. A `FittedDate` is applied as it is; a `Date` is fitted."""

    kind: Kind = "date"
    unseen = 0

    def __init__(self, name: str, date: Date) -> None:
        self.name = name
        self.columns = date.columns(name)
        self._date = date
        self._fitted = date if isinstance(date, FittedDate) else None
        day = date.missing
        missing = float(_DAY * _days(day)) if isinstance(day, datetime.date) else day
        self._filling = Filling(missing, self._fitted.fill if self._fitted else None)
        self._moments = {part: RunningMoments() for part in date.parts}
        self._summary = ColumnSummary()
        self._missing = 0
        self._not_dates = 0
        self._result: FittedDate | None = self._fitted

    @property
    def num_missing(self) -> int:
        """The number of rows without a value: training rows, or all where nothing is fitted."""
        return self._summary.missing

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Return seconds since 1970, NaN where missing."""
        seconds = self._seconds(array)
        is_date = ~np.isnan(seconds)
        self._missing += array.null_count
        self._not_dates += int((~is_date).sum()) - array.null_count
        if self._fitted is not None:
            self._summary.missing += array.null_count
        if self._fitted is None:
            present = seconds[train & is_date]
            num_missing = int(train.sum()) - len(present)
            self._summary.add(present, num_missing, rows=int(train.sum()))
            self._filling.add(present)
            if self._date.standardise:
                for part, moments in self._moments.items():
                    moments.add(self._part(part, present))
        return seconds

    def _seconds(self, array: Any) -> Floats:
        if not pa.types.is_dictionary(array.type):  # a timestamp in microseconds
            seconds = pc.divide(array.cast(pa.int64()).cast(pa.float64(), safe=False), 1e6)
            found: Floats = np.floor(seconds.to_numpy(zero_copy_only=False))
            return np.where((found >= _RANGE[0]) & (found < _RANGE[1]), found, np.nan)
        texts = pc.utf8_trim_whitespace(array.dictionary).to_pylist()
        of_values = np.array([*(parse_date(text, self._date.format) for text in texts), np.nan])
        return np.asarray(of_values[array.indices.fill_null(len(texts)).to_numpy()])

    def transform(self, spilled: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """The parts, and whether the value was missing if there is an indicator."""
        fitted = self.fitted()
        missing = np.isnan(spilled)
        seconds = np.where(missing, self._filling.value, spilled)
        columns = []
        for part in self._date.parts:
            values = self._part(part, seconds)
            if self._date.standardise:
                values = (values - fitted.mean[part]) / fitted.deviation[part]
            columns.append(values.astype(np.float32))
        return [*columns, *([missing.astype(np.float32)] if self._date.indicator else [])]

    def _part(self, part: DatePart, seconds: Floats) -> Floats:
        whole = np.floor(seconds).astype(np.int64)
        days = whole // _DAY
        months = days.astype("datetime64[D]").astype("datetime64[M]")
        match part:
            case "year":
                found = months.astype("datetime64[Y]").astype(np.int64) + 1970
            case "month":
                found = months.astype(np.int64) % 12 + 1
            case "day":
                found = days - months.astype("datetime64[D]").astype(np.int64) + 1
            case "weekday":
                found = (days + _MONDAY) % 7
            case "hour":
                found = whole % _DAY // 3600
            case "days_since":
                found = days - _days(self._date.since)
        return found.astype(np.float64)

    def problems(self) -> list[str]:
        """Text that is no date, and missing values without a declared replacement."""
        found = []
        if self._missing and self._date.missing is None:
            advice = "declare a replacement as missing"
            if self._fitted is not None:  # the model knows none
                advice = f"leave those rows out, or {advice}, prepare all rows and train again"
            found.append(
                f"column {self.name!r}: expected a date in every row, got {self._missing:,} rows "
                f"without; {advice}"
            )
        if self._not_dates:
            expected, step = "ISO 8601", f"if they are written in another way, {FORMAT_ADVICE}"
            if self._date.format is not None:
                expected, step = f"format {self._date.format!r}", "correct the format"
            found.append(
                f"column {self.name!r}: expected dates from year 1 to 9998 ({expected}), got "
                f"{self._not_dates:,} rows with something else; {step}"
            )
        self._missing = self._not_dates = 0
        return found

    def warnings(self) -> list[str]:
        """A column that is constant or nearly empty."""
        return self._summary.warnings(self.name)

    def fitted(self) -> FittedDate:
        """The declaration with what was fitted on the training rows; final when called first."""
        if self._result is None:
            fill = self._filling.value
            mean: dict[DatePart, float] = {}
            deviation: dict[DatePart, float] = {}
            for part in self._date.parts if self._date.standardise else ():
                filled = float(self._part(part, np.array([fill]))[0])
                self._moments[part].add_equal(filled, self.num_missing)
                mean[part], deviation[part] = self._moments[part].result()
            self._result = FittedDate(
                **self._date.model_dump(),
                mean=mean,
                deviation=deviation,
                fill=None if self._filling.is_known else fill,
            )
        return self._result


def parse_date(text: str, format_: str | None) -> float:
    """Seconds since 1970 of a date or time in ISO 8601 or another format; NaN for other text."""
    try:
        if format_ is None:
            time = datetime.datetime.fromisoformat(text)
        else:
            time = datetime.datetime.strptime(text, format_)
        if time.tzinfo is None:
            time = time.replace(tzinfo=_UTC)
        seconds = (time - _EPOCH) // datetime.timedelta(seconds=1)
    except (ValueError, OverflowError):
        return float("nan")
    return float(seconds) if _RANGE[0] <= seconds < _RANGE[1] else float("nan")


def _days(day: datetime.date) -> int:
    return (day - _EPOCH.date()).days
