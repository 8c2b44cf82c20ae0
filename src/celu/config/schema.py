"""The schemas of a party's columns: of raw files (`schema.toml`) and of a store (`schema.json`).

A user writes `RawSchema`. `celu prepare` writes `StoreSchema`: the same columns with the values
that were fitted on the training rows, so that new rows can be encoded in the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from celu.config.columns import (
    Bag,
    Category,
    Date,
    Extended,
    FittedBag,
    FittedCategory,
    FittedDate,
    FittedNumber,
    Number,
)
from celu.config.reading import read_json, read_settings
from celu.errors import DataError

SCHEMA_FILE = "schema.json"
# Columns that every store has; no feature may have these names.
ID, TAG, LABEL = "id", "tag", "label"
RESERVED = (ID, TAG, LABEL)
WEIGHT = "#weight"  # the store's column of row weights, which most stores do not have
# The inputs of a bottom model: codes of categories, numbers, and lists of codes.
IDS, NUMBERS, BAGS = "ids", "numbers", "bags"
# Fields of a store's schema that do not change the meaning of its columns.
_NOT_MEANING = {"format", "source", "split", "weight", "labelled", "rows", "missing"}
ROW_NUMBER = "#row"  # as the id: the row number, for rows in the same order at all parties

_CLASSES_SHOWN = 10

# A class of labels: text, or a number as it is written.
ClassLabel = str | int | float
ColumnName = Annotated[str, Field(min_length=1, max_length=200)]


Part = Literal["train", "validation", "test"]
HeldOut = Literal["validation", "test"]  # the parts that are not trained on
_Count = Annotated[int, Field(ge=0)]


def _has_train_and_test(rows: dict[Part, int]) -> dict[Part, int]:
    if not {"train", "test"} <= rows.keys():
        raise ValueError(f"expected train and test, got {', '.join(rows) or 'neither'}")
    return rows


CountByPart = Annotated[dict[Part, _Count], AfterValidator(_has_train_and_test)]


def _separates_fields(text: str) -> str:
    if len(text) != 1 or not text.isascii() or text in '"\r\n' or text.isalnum():
        raise ValueError("expected one character that is not a letter, digit, quote or line break")
    return text


def _surrounds_numbers(text: str) -> str:
    if (
        not 0 < len(text) <= 10
        or text != text.strip()
        or any(c in "+-.,'_" or c.isdigit() for c in text)
    ):
        raise ValueError("expected up to 10 characters without digits, signs and spaces around it")
    return text


TEXT_STYLE = "delimiter, decimal, thousands and units"


class Source(Extended):
    """How to read the raw files; by default from their suffix (csv, tsv, parquet; .gz).

    `delimiter`, `decimal`, `thousands` and `units` are for text: the character between two fields,
    the one before the digits of a fraction, the one between groups of three digits, and texts
    before or after a number, such as "$" or "%", that are left out.
    """

    ADDED: ClassVar[frozenset[str]] = frozenset({"delimiter", "decimal", "thousands", "units"})

    format: Literal["csv", "tsv", "parquet"] | None = None
    """The format of the files; by default by their suffix."""
    names: list[ColumnName] | None = None
    """The columns of files without a header."""
    missing: list[str] = [""]
    """Texts that mean a missing value; "" always does."""
    delimiter: Annotated[str, AfterValidator(_separates_fields)] | None = None
    """The character between two fields."""
    decimal: Literal[".", ","] = "."
    """The character before the digits of a fraction."""
    thousands: Literal[",", ".", " ", "'"] | None = None
    """The character between groups of three digits."""
    units: list[Annotated[str, AfterValidator(_surrounds_numbers)]] = []
    """Texts around a number that are left out, such as "$"."""

    @model_validator(mode="after")
    def _style_fits(self) -> Source:
        if self.format == "parquet" and self.styles_text:
            raise ValueError(f"{TEXT_STYLE} are for text files, not for Parquet")
        if self.delimiter == self.decimal:
            raise ValueError("delimiter and decimal are the same character")
        if self.thousands == self.decimal:
            raise ValueError("thousands and decimal are the same character")
        return self

    @property
    def styles_text(self) -> bool:
        """Whether something is declared that only text files have."""
        return (self.delimiter, self.decimal, self.thousands, self.units) != (None, ".", None, [])


class Split(Extended):
    """Which rows are held out: a function of (seed, id), so it is the same at all parties.

    `test` and `validation` are shares of the rows. The test rows do not depend on `validation`.
    """

    ADDED: ClassVar[frozenset[str]] = frozenset({"validation"})

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """The seed of the split: the same at all parties."""
    test: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The share of test rows: the same at all parties."""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of validation rows: the same at all parties."""

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


class _Columns(Extended):
    id: ColumnName
    """The column of ids; "#row" for row numbers."""
    label: ColumnName | None = None
    """The column that a guest predicts."""
    weight: ColumnName | None = None
    """The guest's column of how much each row counts."""
    split: Split = Split()


class RawSchema(_Columns):
    """The columns of a party's raw files (`schema.toml`).

    `positive` is the label of two that counts as positive: by default the larger number, or the
    second text in sorted order.
    """

    ADDED: ClassVar[frozenset[str]] = frozenset({"positive", "weight", "dates", "bags"})

    source: Source = Source()
    positive: ClassLabel | None = None
    """The positive one of two labels; by default the larger, or the second in order."""
    numbers: dict[ColumnName, Number] = {}
    categories: dict[ColumnName, Category] = {}
    dates: dict[ColumnName, Date] = {}
    bags: dict[ColumnName, Bag] = {}

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> RawSchema:
        tables = (self.numbers, self.categories, self.dates, self.bags)
        declared = [name for table in tables for name in table]
        twice = [name for name, count in Counter(declared).items() if count > 1]
        if twice:
            raise ValueError(
                f"expected a column as one of numbers, categories, dates and bags, got two: "
                f"{twice[0]}"
            )
        for name in (self.id, self.label):
            if name in declared:
                raise ValueError(f"{name} is declared as id or label, and as a feature")
        if self.weight in declared:
            raise ValueError(f"{self.weight} is declared as weight, and as a feature")
        stored = Counter(stored_columns(self))
        reserved = stored.keys() & {*RESERVED, *([WEIGHT] if self.weight else [])}
        if reserved:
            raise ValueError(
                f"{sorted(reserved)[0]} is reserved for a column of the store: rename it"
            )
        if self.positive is not None and self.label is None:
            raise ValueError("positive: expected none without a label")
        twice = [name for name, count in stored.items() if count > 1]
        if twice:
            raise ValueError(
                f"{twice[0]} is a column, and also made from another one: rename or leave out one"
            )
        if self.id == self.label:
            raise ValueError("id and label are the same column")
        if self.weight is not None and self.label is None:
            raise ValueError("weight needs label: rows count in the loss of the party with labels")
        if self.weight is not None and self.weight in (self.id, self.label):
            raise ValueError("weight is the same column as id or label")
        if not declared and self.label is None:
            raise ValueError("expected a label, numbers, categories, dates or bags, got none")
        return self


class StoreSchema(_Columns):
    """A store's `schema.json`."""

    ADDED: ClassVar[frozenset[str]] = frozenset({"classes", "weight", "dates", "bags", "missing"})

    format: Literal["celu-store-1"] = "celu-store-1"
    source: Source = Source()
    label_type: Literal["class", "number"] | None = None  # int64 or float32
    # Of text labels, in the order of their codes; or of a number with two values: the negative and
    # the positive one.
    classes: list[ClassLabel] | None = None
    numbers: dict[ColumnName, FittedNumber] = {}
    categories: dict[ColumnName, FittedCategory] = {}
    dates: dict[ColumnName, FittedDate] = {}
    bags: dict[ColumnName, FittedBag] = {}
    # Training rows whose value was missing and was filled, by raw column; in a store of rows to be
    # scored, which has no training rows, all such rows.
    missing: dict[ColumnName, Annotated[int, Field(ge=0)]] = {}
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

    @property
    def has_weights(self) -> bool:
        """Whether the rows of this store have weights."""
        return self.weight is not None and self.has_labels

    def digest(self) -> str:
        """Identifies the meaning of the columns; a model fits stores with the same digest."""
        meaning = self.model_dump(mode="json", exclude=_NOT_MEANING)
        if self.classes == [0, 1]:  # which stores of earlier releases do not name
            del meaning["classes"]
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """The content of `schema.json`."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"

    def write(self, folder: Path) -> None:
        """Write `schema.json` into the folder of a store."""
        (folder / SCHEMA_FILE).write_text(self.to_json(), encoding="utf-8")

    def inputs(self) -> dict[str, list[str]]:
        """All features as inputs of a bottom model: "ids", "numbers" and "bags", if there are any.

        The columns are those of the store: a date has several.
        """
        named = {
            IDS: list(self.categories),
            NUMBERS: number_columns(self),
            BAGS: list(self.bags),
        }
        return {name: columns for name, columns in named.items() if columns}


def describe_label(schema: StoreSchema) -> str | None:
    """A store's label in words, with its positive class; for this party only."""
    if not schema.has_labels:
        return None
    text = f"label {schema.label}: "
    if schema.classes is None:
        return text + ("classes by code" if schema.label_type == "class" else "a number")
    if len(schema.classes) == 2:
        return text + f"two classes, {schema.classes[0]} and {schema.classes[1]} (positive)"
    shown = ", ".join(map(str, schema.classes[:_CLASSES_SHOWN]))
    more = ", ..." if len(schema.classes) > _CLASSES_SHOWN else ""
    return text + f"{len(schema.classes):,} classes: {shown}{more}"


def number_columns(schema: RawSchema | StoreSchema) -> list[str]:
    """The columns of numbers in a store: those of `numbers`, then those of `dates`."""
    tables = (schema.numbers, schema.dates)
    return [column for table in tables for name in table for column in table[name].columns(name)]


def stored_columns(schema: RawSchema | StoreSchema) -> list[str]:
    """The columns of all features in a store, in its order."""
    return [*number_columns(schema), *schema.categories, *schema.bags]


def read_raw_schema(path: Path) -> RawSchema:
    """Read and validate a `schema.toml`; raises ConfigError."""
    return read_settings(RawSchema, path)


def read_store_schema(folder: Path) -> StoreSchema:
    """Read and validate a store's `schema.json`; raises DataError."""
    create = 'create the store with "celu prepare"'
    return read_json(StoreSchema, folder / SCHEMA_FILE, "a store's schema", create, DataError)
