"""The schemas of a party's columns: of raw files (`schema.toml`) and of a store (`schema.json`).

A user writes `RawSchema`. `celu prepare` writes `StoreSchema`: the same columns with the values
that were fitted on the training rows, so that new rows can be encoded in the same way.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, ValidationError, model_validator

from celu.config.reading import Settings, describe, read_settings
from celu.errors import DataError

SCHEMA_FILE = "schema.json"
# Columns that every store has; no feature may have these names.
ID, TAG, LABEL = "id", "tag", "label"
RESERVED = (ID, TAG, LABEL)
# The inputs of a bottom model: codes of categories, and numbers.
IDS, NUMBERS = "ids", "numbers"
# Fields of a store's schema that do not change the meaning of its columns.
_NOT_MEANING = {"format", "source", "split", "labelled", "rows"}
ROW_NUMBER = "#row"  # as the id: the row number, for rows in the same order at all parties

MAX_VOCABULARY = 4_000_000

ColumnName = Annotated[str, Field(min_length=1, max_length=200)]


Part = Literal["train", "validation", "test"]
HeldOut = Literal["validation", "test"]  # the parts that are not trained on
_Count = Annotated[int, Field(ge=0)]


def _has_train_and_test(rows: dict[Part, int]) -> dict[Part, int]:
    if not {"train", "test"} <= rows.keys():
        raise ValueError(f"expected train and test, got {', '.join(rows) or 'neither'}")
    return rows


CountByPart = Annotated[dict[Part, _Count], AfterValidator(_has_train_and_test)]


class Source(Settings):
    """How to read the raw files; by default from their suffix (csv, tsv, parquet; .gz)."""

    format: Literal["csv", "tsv", "parquet"] | None = None
    names: list[ColumnName] | None = None  # for files without a header
    missing: list[str] = [""]  # texts that mean a missing value; "" always does


class Split(Settings):
    """Which rows are held out: a function of (seed, id), so it is the same at all parties.

    `test` and `validation` are shares of the rows. The test rows do not depend on `validation`.
    """

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    test: Annotated[float, Field(ge=0, lt=1)] = 0.1
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _some_rows_are_trained_on(self) -> Split:
        if self.test + self.validation >= 1:
            raise ValueError(
                f"expected test + validation below 1, got {self.test} + {self.validation}"
            )
        return self

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts into which the rows are split."""
        return ("train", "validation", "test") if self.validation else ("train", "test")


class Number(Settings):
    """A numeric column; `missing`, `log` and `standardise` are applied in this order.

    They fill missing values, compute log(x + 1), and compute (x - mean) / standard deviation.
    Without `missing`, a missing value is an error. For x <= -1 the logarithm is replaced by -1.
    """

    missing: float | None = None
    log: bool = False
    standardise: bool = False


class Category(Settings):
    """A categorical column: codes by hash, or from a vocabulary fitted on the training rows.

    With `buckets`, code 0 is for missing values and others are hashed to 1..buckets. With
    `vocabulary` (its maximum size), code 0 is for missing values, 1 for values that occur in fewer
    than `min_count` training rows, and codes from 2 are for the others, most frequent first.
    """

    buckets: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    vocabulary: Annotated[int, Field(ge=1, le=MAX_VOCABULARY)] | None = None
    min_count: PositiveInt = 1

    @model_validator(mode="after")
    def _buckets_or_vocabulary(self) -> Category:
        if (self.buckets is None) == (self.vocabulary is None):
            raise ValueError("exactly one of buckets and vocabulary must be given")
        if self.buckets is not None and self.min_count != 1:
            raise ValueError("min_count needs vocabulary; it has no effect on buckets")
        return self


class _Columns(Settings):
    id: ColumnName
    label: ColumnName | None = None
    split: Split = Split()


class RawSchema(_Columns):
    """The columns of a party's raw files (`schema.toml`)."""

    source: Source = Source()
    numbers: dict[ColumnName, Number] = {}
    categories: dict[ColumnName, Category] = {}

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> RawSchema:
        both = self.numbers.keys() & self.categories.keys()
        if both:
            raise ValueError(f"a column is a number or a category, not both: {sorted(both)[0]}")
        features = self.numbers.keys() | self.categories.keys()
        for name in (self.id, self.label):
            if name in features:
                raise ValueError(f"{name} is declared as id or label, and as a feature")
        reserved = features & set(RESERVED)
        if reserved:
            raise ValueError(
                f"{sorted(reserved)[0]} is reserved for a column of the store: rename it"
            )
        if self.id == self.label:
            raise ValueError("id and label are the same column")
        if not features and self.label is None:
            raise ValueError("expected a label, numbers or categories, got none")
        return self


class FittedNumber(Number):
    """A number with the mean and standard deviation of the training rows, after filling and log."""

    mean: float = 0.0
    deviation: Annotated[float, Field(gt=0)] = 1.0


class FittedCategory(Category):
    """A category with its vocabulary, in the order of the codes."""

    values: list[str] | None = None

    @property
    def size(self) -> int:
        """The number of codes."""
        if self.buckets is not None:
            return self.buckets + 1
        return len(self.values or []) + 2


class StoreSchema(_Columns):
    """A store's `schema.json`."""

    format: Literal["celu-store-1"] = "celu-store-1"
    source: Source = Source()
    label_type: Literal["class", "number"] | None = None  # int64 or float32
    numbers: dict[ColumnName, FittedNumber] = {}
    categories: dict[ColumnName, FittedCategory] = {}
    labelled: bool = True  # False for new rows without labels
    rows: CountByPart = {"train": 0, "test": 0}

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the store; a store without validation rows may lack that part."""
        order: tuple[Part, ...] = ("train", "validation", "test")
        return tuple(part for part in order if part in self.rows)

    @property
    def has_labels(self) -> bool:
        """Whether the rows of this store have labels."""
        return self.label_type is not None and self.labelled

    def digest(self) -> str:
        """Identifies the meaning of the columns; a model fits stores with the same digest."""
        meaning = self.model_dump(mode="json", exclude=_NOT_MEANING)
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """The content of `schema.json`."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"

    def write(self, folder: Path) -> None:
        """Write `schema.json` into the folder of a store."""
        (folder / SCHEMA_FILE).write_text(self.to_json(), encoding="utf-8")

    def inputs(self) -> dict[str, list[str]]:
        """All features as inputs of a bottom model: "ids" and "numbers", where there are any."""
        named = {IDS: list(self.categories), NUMBERS: list(self.numbers)}
        return {name: columns for name, columns in named.items() if columns}


def read_raw_schema(path: Path) -> RawSchema:
    """Read and validate a `schema.toml`; raises ConfigError."""
    return read_settings(RawSchema, path)


def read_store_schema(folder: Path) -> StoreSchema:
    """Read and validate a store's `schema.json`; raises DataError."""
    path = folder / SCHEMA_FILE
    try:
        return StoreSchema.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{path}: expected a store's schema, got: {error.strerror}; "
            'create the store with "celu prepare"'
        ) from error
    except ValidationError as error:
        problems = "; ".join(describe(error)[:5])
        raise DataError(f"{path}: expected a store's schema, got: {problems}") from error
