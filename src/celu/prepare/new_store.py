"""A store in the making: its columns, how each is read, and what it says of itself in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celu.config.schema import Declared, LearntCategory, Part, StoreSchema
from celu.data.store import arrow_schema
from celu.prepare.encoders import (
    Column,
    HashedColumn,
    KnownColumn,
    LabelColumn,
    NumberColumn,
    Room,
    VocabularyColumn,
)
from celu.prepare.raw import Kind


@dataclass(frozen=True)
class Report:
    """What became of a store; `unseen` counts rows with values that a known vocabulary lacks."""

    out: Path
    rows: dict[Part, int]
    warnings: tuple[str, ...] = ()
    unseen: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NewStore:
    """A store in the making; `schema` tells what was learnt, given the number of rows."""

    out: Path
    label: LabelColumn | None
    numbers: list[NumberColumn]
    categories: list[HashedColumn | VocabularyColumn | KnownColumn]
    schema: Callable[[dict[Part, int]], StoreSchema]

    def columns(self) -> list[Column]:
        """In the order of the store."""
        return [*([self.label] if self.label else []), *self.numbers, *self.categories]

    def kinds(self) -> dict[str, Kind]:
        """How to read each raw column."""
        kinds: dict[str, Kind] = {self.label.name: "label"} if self.label else {}
        kinds |= dict.fromkeys((column.name for column in self.numbers), "number")
        kinds |= dict.fromkeys((column.name for column in self.categories), "category")
        return kinds

    def arrow(self) -> Any:
        """The schema of its Parquet files, once all rows have been seen."""
        return arrow_schema(self.schema({"train": 0, "test": 0}))

    def report(self, rows: dict[Part, int]) -> Report:
        """What became of it."""
        warnings = [warning for column in self.columns() for warning in column.warnings()]
        known = [column for column in self.categories if isinstance(column, KnownColumn)]
        unseen = {column.name: column.unseen for column in known if column.unseen}
        return Report(self.out, rows, tuple(warnings), unseen)


def learning(declared: Declared, out: Path, room: Room) -> NewStore:
    """A store that learns from its training rows."""
    label = LabelColumn(declared.label) if declared.label else None
    numbers = [NumberColumn(name, number) for name, number in declared.numbers.items()]
    categories: list[HashedColumn | VocabularyColumn | KnownColumn] = [
        VocabularyColumn(name, category, room)
        if category.buckets is None
        else HashedColumn(name, category)
        for name, category in declared.categories.items()
    ]

    def schema(rows: dict[Part, int]) -> StoreSchema:
        return StoreSchema(
            id=declared.id,
            label=declared.label,
            split=declared.split,
            source=declared.source,
            label_type=label.type if label else None,
            numbers={column.name: column.learnt() for column in numbers},
            categories={column.name: column.learnt() for column in categories},
            rows=rows,
        )

    return NewStore(out, label, numbers, categories, schema)


def knowing(known: StoreSchema, out: Path, *, labelled: bool) -> NewStore:
    """A store that learns nothing: its columns are those of another."""
    label = LabelColumn(known.label, known.label_type) if known.label and labelled else None
    numbers = [NumberColumn(name, number) for name, number in known.numbers.items()]
    categories = [_known(name, category) for name, category in known.categories.items()]

    def schema(rows: dict[Part, int]) -> StoreSchema:
        labels = {"labelled": label is not None or known.label is None}
        return known.model_copy(update={"rows": rows, **labels})

    return NewStore(out, label, numbers, categories, schema)


def _known(name: str, category: LearntCategory) -> HashedColumn | VocabularyColumn | KnownColumn:
    if category.buckets is None:
        return KnownColumn(name, category)
    return HashedColumn(name, category)
