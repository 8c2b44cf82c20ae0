"""The declarations of feature columns: as a user writes them, and with the values fitted on them.

A declaration says which columns of a store a raw column becomes: one number or code, several
numbers (parts of a date, an indicator of missing values), or a list of codes.
"""

from __future__ import annotations

import datetime
import math
import re
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    BeforeValidator,
    Field,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from celu.config.reading import Settings

MAX_VOCABULARY = 4_000_000
MAX_QUANTILES = 1000
MAX_VALUES = 64  # in a row of a bag
MISSING = "missing"  # the suffix of an indicator's column

Statistic = Literal["mean", "median"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
DatePart = Literal["year", "month", "day", "weekday", "hour", "days_since"]


class Extended(Settings):
    """Settings with fields that earlier releases did not have: those in `ADDED`.

    Such a field is left out of files where it has its default, so a schema that does not use it
    has the digest that it had before.
    """

    ADDED: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        written: dict[str, Any] = handler(self)
        return {
            name: value
            for name, value in written.items()
            if name not in self.ADDED or getattr(self, name) != fields[name].default
        }


def _number_or_statistic(value: Any) -> Any:
    """One error for the whole union; pydantic has one for each of its types."""
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    if value in (None, *STATISTICS) or (is_number and math.isfinite(value)):
        return value
    raise ValueError(f'expected a finite number, "mean" or "median", got {value!r}')


def _day_or_statistic(value: Any) -> Any:
    if value in (None, *STATISTICS) or type(value) is datetime.date:
        return value
    try:
        return datetime.date.fromisoformat(value)  # in JSON, a day is text
    except (TypeError, ValueError):
        pass
    raise ValueError(f'expected a day (2020-12-31), "mean" or "median", got {value!r}')


class Number(Extended):
    """A numeric column; `missing`, `log` and `standardise` are applied in this order.

    They fill missing values, compute log(x + 1), and compute (x - mean) / standard deviation.
    `missing` is a number, or "mean" or "median" of the training rows; without it, a missing value
    is an error. For x <= -1 the logarithm is replaced by -1. With `indicator`, a second column,
    NAME.missing, is 1 where the value was missing and 0 elsewhere.
    """

    ADDED: ClassVar[frozenset[str]] = frozenset({"indicator"})

    missing: Annotated[float | Statistic | None, BeforeValidator(_number_or_statistic)] = None
    """What replaces a missing value; by default it is an error."""
    log: bool = False
    """Whether log(x + 1) is computed."""
    standardise: bool = False
    """Whether the mean is subtracted, and the result divided by the standard deviation."""
    indicator: bool = False
    """Whether a column NAME.missing says which values were missing."""

    @model_validator(mode="after")
    def _indicator_needs_missing(self) -> Number:
        if self.indicator and self.missing is None:
            raise ValueError("indicator needs missing: without it, a missing value is an error")
        return self

    def columns(self, name: str) -> list[str]:
        """The names of its columns in a store."""
        return [name, *([f"{name}.{MISSING}"] if self.indicator else [])]


class FittedNumber(Number):
    """A number with the mean and standard deviation of the training rows, after filling and log.

    `fill` is the mean or median that replaces missing values, if `missing` names one.
    """

    ADDED: ClassVar[frozenset[str]] = Number.ADDED | {"fill"}

    mean: float = 0.0
    deviation: Annotated[float, Field(gt=0)] = 1.0
    fill: float | None = None

    @model_validator(mode="after")
    def _fill_is_fitted(self) -> FittedNumber:
        if isinstance(self.missing, str) != (self.fill is not None):
            raise ValueError("expected fill where missing is mean or median, and only there")
        return self


class Coded(Extended):
    """Values as codes: by hash, or from a vocabulary fitted on the training rows.

    With `buckets`, code 0 is for missing values and others are hashed to 1..buckets. With
    `vocabulary` (its maximum size), code 0 is for missing values, 1 for values that occur in fewer
    than `min_count` training rows, and codes from 2 are for the others, most frequent first.
    """

    buckets: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """The number of codes that values are hashed to."""
    vocabulary: Annotated[int, Field(ge=1, le=MAX_VOCABULARY)] | None = None
    """The largest number of values with codes of their own; the most frequent have them."""
    min_count: PositiveInt = 1
    """With vocabulary: rarer values share one code."""

    @model_validator(mode="after")
    def _one_kind_of_codes(self) -> Coded:
        kinds = [name for name in self.kinds() if getattr(self, name) is not None]
        if len(kinds) != 1:
            *first, last = self.kinds()
            raise ValueError(f"exactly one of {', '.join(first)} and {last} must be given")
        if self.vocabulary is None and self.min_count != 1:
            raise ValueError(f"min_count needs vocabulary; it has no effect on {kinds[0]}")
        return self

    @classmethod
    def kinds(cls) -> list[str]:
        """The fields of which exactly one is given."""
        return ["buckets", "vocabulary"]


class Category(Coded):
    """A categorical column: codes by hash, from a vocabulary, or by quantile of a number.

    With `quantiles`, a number is a code too: 0 for missing values, and 1 to at most `quantiles`
    for ranges of numbers with about the same number of training rows in each.
    """

    ADDED: ClassVar[frozenset[str]] = frozenset({"quantiles"})

    quantiles: Annotated[int, Field(ge=2, le=MAX_QUANTILES)] | None = None
    """The number of ranges of a number, each with about equally many training rows."""

    @classmethod
    def kinds(cls) -> list[str]:
        """See `Coded.kinds`."""
        return [*super().kinds(), "quantiles"]


class FittedCategory(Category):
    """A category with its vocabulary in the order of the codes, or the edges of its quantiles.

    Numbers from edge i - 1 to below edge i have code i + 1; code 1 is below the first edge.
    """

    ADDED: ClassVar[frozenset[str]] = Category.ADDED | {"edges"}

    values: list[str] | None = None
    edges: list[float] | None = None

    @model_validator(mode="after")
    def _edges_ascend(self) -> FittedCategory:
        if (self.quantiles is None) != (self.edges is None):
            raise ValueError("expected edges where quantiles is given, and only there")
        edges = self.edges or []
        if any(high <= low for low, high in pairwise(edges)):
            raise ValueError("edges: expected ascending numbers")
        return self

    @property
    def size(self) -> int:
        """The number of codes."""
        if self.edges is not None:
            return len(self.edges) + 2
        return _size(self.buckets, self.values)


class Date(Extended):
    """A column of dates or times; each of `parts` becomes a number, the column NAME.PART.

    Text is ISO 8601, or has the `format` of Python's `strptime`. Parts are in UTC: a time with an
    offset is converted, one without is taken as it is. `weekday` is 0 on Mondays, and `days_since`
    counts the days since the day `since`. `missing` is a day, or the "mean" or "median" time of the
    training rows; `indicator` adds NAME.missing. `standardise` applies to each part.
    """

    parts: Annotated[list[DatePart], Field(min_length=1)]
    """Each part becomes a number, the column NAME.PART."""
    format: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """That of Python's strptime; by default ISO 8601."""
    since: datetime.date = datetime.date(1970, 1, 1)
    """The day from which days_since counts."""
    missing: Annotated[datetime.date | Statistic | None, BeforeValidator(_day_or_statistic)] = None
    """What replaces a missing value; by default it is an error."""
    indicator: bool = False
    """Whether a column NAME.missing says which values were missing."""
    standardise: bool = False
    """Whether each part is standardised."""

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Date:
        if len(set(self.parts)) < len(self.parts):
            raise ValueError("parts: expected each part once")
        if self.indicator and self.missing is None:
            raise ValueError("indicator needs missing: without it, a missing value is an error")
        if self.format is not None:
            _check_format(self.format)
        return self

    def columns(self, name: str) -> list[str]:
        """The names of its columns in a store."""
        suffixes = [*self.parts, *([MISSING] if self.indicator else [])]
        return [f"{name}.{suffix}" for suffix in suffixes]


class FittedDate(Date):
    """A date with the means and deviations of its parts in the training rows, after filling.

    `fill` is the mean or median that replaces missing values, in seconds since 1970, if `missing`
    names one. `mean` and `deviation` are empty unless `standardise` is true.
    """

    fill: float | None = None
    mean: dict[DatePart, float] = {}
    deviation: dict[DatePart, Annotated[float, Field(gt=0)]] = {}

    @model_validator(mode="after")
    def _values_are_fitted(self) -> FittedDate:
        if isinstance(self.missing, str) != (self.fill is not None):
            raise ValueError("expected fill where missing is mean or median, and only there")
        fitted = set(self.parts) if self.standardise else set()
        if self.mean.keys() != fitted or self.deviation.keys() != fitted:
            raise ValueError("expected mean and deviation of each part if standardise is true")
        return self


class Bag(Coded):
    """A column with several values in a row, such as genres: a list of codes.

    `separator` is between two values of text; a Parquet file may have lists instead. A row has its
    first `max_values` values, each once; code 0 fills the rest of the list, and all of it where the
    value is missing.
    """

    separator: Annotated[str, Field(min_length=1, max_length=10)]
    """The text between two values."""
    max_values: Annotated[int, Field(ge=1, le=MAX_VALUES)] = 16
    """The most values of a row; a repeated one counts once."""


class FittedBag(Bag):
    """A bag with its vocabulary, in the order of the codes."""

    values: list[str] | None = None

    @property
    def size(self) -> int:
        """The number of codes."""
        return _size(self.buckets, self.values)


def _check_format(format_: str) -> None:
    """Raise ValueError unless Python can read what it writes in this format."""
    day = datetime.datetime(2001, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    try:
        datetime.datetime.strptime(day.strftime(format_), format_)
    except (ValueError, re.error):
        raise ValueError(f"format: expected one for Python's strptime, got {format_!r}") from None


def _size(buckets: int | None, values: list[str] | None) -> int:
    return buckets + 1 if buckets is not None else len(values or []) + 2
