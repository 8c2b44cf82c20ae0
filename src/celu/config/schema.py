"""What a party's columns are: as declared for raw files (`schema.toml`), and as kept in a store.

`Declared` is written by a person. `StoreSchema` is written by `celu prepare`: the same columns with
whatever was learnt from the training rows, so that rows to come can be put through the same door.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, ValidationError, model_validator

from celu.config.reading import Settings, describe, read_settings
from celu.errors import DataError

SCHEMA_FILE = "schema.json"
# Names that a store gives to columns of its own; no feature may have them.
ID, TAG, LABEL = "id", "tag", "label"
RESERVED = (ID, TAG, LABEL)
# The inputs of a bottom model: codes of categories, and numbers.
IDS, NUMBERS = "ids", "numbers"
# Fields of a store's schema that do not say what its columns mean.
_NOT_MEANING = {"format", "source", "split", "labelled", "rows"}
ROW_NUMBER = "#row"  # as the id: rows stand in the same order everywhere, and have no other

MAX_VOCABULARY = 4_000_000

ColumnName = Annotated[str, Field(min_length=1, max_length=200)]


Part = Literal["train", "test"]
CountByPart = Annotated[dict[Part, Annotated[int, Field(ge=0)]], Field(min_length=2)]


class Source(Settings):
    """How to read the raw files; by default as their names say (csv, tsv, parquet; .gz)."""

    format: Literal["csv", "tsv", "parquet"] | None = None
    names: list[ColumnName] | None = None  # where the files have no header line
    missing: list[str] = [""]  # what stands for a missing value, beside an empty field


class Split(Settings):
    """Which rows are held out: a function of (seed, id), so that all parties hold out the same."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    test: Annotated[float, Field(ge=0, lt=1)] = 0.1


class Number(Settings):
    """A numeric column: fill what is missing, then log(x + 1), then (x - mean) / deviation.

    Without `missing`, a missing value is an error. The log of x <= -1 is taken as -1.
    """

    missing: float | None = None
    log: bool = False
    standardise: bool = False


class Category(Settings):
    """A categorical column: codes by hash, or from a vocabulary learnt on the training rows.

    With `buckets`, code 0 is for missing values and the others are hashed onto 1..buckets. With
    `vocabulary` (the most values kept), code 0 is for missing, 1 for values never or too seldom
    seen (fewer than `min_count` training rows), the others from 2, most frequent first.
    """

    buckets: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    vocabulary: Annotated[int, Field(ge=1, le=MAX_VOCABULARY)] | None = None
    min_count: PositiveInt = 1

    @model_validator(mode="after")
    def _one_of_two(self) -> Category:
        if (self.buckets is None) == (self.vocabulary is None):
            raise ValueError("exactly one of buckets and vocabulary must be given")
        if self.buckets is not None and self.min_count != 1:
            raise ValueError("min_count goes with vocabulary; buckets learn nothing")
        return self


class _Columns(Settings):
    id: ColumnName
    label: ColumnName | None = None
    split: Split = Split()


class Declared(_Columns):
    """A party's raw columns (`schema.toml`)."""

    source: Source = Source()
    numbers: dict[ColumnName, Number] = {}
    categories: dict[ColumnName, Category] = {}

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> Declared:
        both = self.numbers.keys() & self.categories.keys()
        if both:
            raise ValueError(f"a column is a number or a category, not both: {sorted(both)[0]}")
        features = self.numbers.keys() | self.categories.keys()
        for name in (self.id, self.label):
            if name in features:
                raise ValueError(f"{name} is declared as id or label, and as a feature")
        reserved = features & set(RESERVED)
        if reserved:
            raise ValueError(f"a store keeps the name {sorted(reserved)[0]} for itself: rename it")
        if self.id == self.label:
            raise ValueError("id and label are one column")
        if not features and self.label is None:
            raise ValueError("expected a label, numbers or categories, got none")
        return self


class LearntNumber(Number):
    """... with the mean and deviation of the training rows, after filling and log."""

    mean: float = 0.0
    deviation: Annotated[float, Field(gt=0)] = 1.0


class LearntCategory(Category):
    """... with the vocabulary in the order of its codes."""

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
    numbers: dict[ColumnName, LearntNumber] = {}
    categories: dict[ColumnName, LearntCategory] = {}
    labelled: bool = True  # False for new rows whose label nobody knows yet
    rows: CountByPart = {"train": 0, "test": 0}

    @property
    def has_labels(self) -> bool:
        """Whether the rows of this store have labels."""
        return self.label_type is not None and self.labelled

    def digest(self) -> str:
        """Names what the columns mean, whatever the rows: a model is trained for one digest."""
        meaning = self.model_dump(mode="json", exclude=_NOT_MEANING)
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write `schema.json` into a store that is being made."""
        text = json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False)
        (folder / SCHEMA_FILE).write_text(text + "\n", encoding="utf-8")


def read_declared(path: Path) -> Declared:
    """Read and validate a `schema.toml`; raises ConfigError."""
    return read_settings(Declared, path)


def read_store_schema(folder: Path) -> StoreSchema:
    """Read and validate a store's `schema.json`; raises DataError."""
    path = folder / SCHEMA_FILE
    try:
        return StoreSchema.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{path}: expected a store's schema, got: {error.strerror}; "
            'make the store with "celu prepare"'
        ) from error
    except ValidationError as error:
        problems = "; ".join(describe(error)[:5])
        raise DataError(f"{path}: expected a store's schema, got: {problems}") from error
