"""A store that is being prepared: its encoders, and the schema that they produce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celu.config.schema import Part, RawSchema, StoreSchema, describe_label
from celu.data.store import arrow_schema
from celu.prepare.encoders.categories import (
    CategoryEncoder,
    FittedVocabularyEncoder,
    HashEncoder,
    VocabularyBudget,
    VocabularyEncoder,
)
from celu.prepare.encoders.encoder import Encoder
from celu.prepare.encoders.labels import FittedLabelEncoder, LabelEncoder
from celu.prepare.encoders.numbers import NumberEncoder
from celu.prepare.parsing import Kind


@dataclass(frozen=True)
class Report:
    """A prepared store; `unseen` counts, by column, rows with values outside its vocabulary."""

    out: Path
    rows: dict[Part, int]
    warnings: tuple[str, ...] = ()
    unseen: dict[str, int] = field(default_factory=dict)
    label: str | None = None  # what the label is, in words


@dataclass(frozen=True)
class NewStore:
    """A store that is being prepared; `schema` returns its schema, given the number of rows."""

    out: Path
    label: LabelEncoder | FittedLabelEncoder | None
    numbers: list[NumberEncoder]
    categories: list[CategoryEncoder]
    schema: Callable[[dict[Part, int]], StoreSchema]

    def encoders(self) -> list[Encoder]:
        """In the order of the store's columns."""
        return [*([self.label] if self.label else []), *self.numbers, *self.categories]

    def kinds(self) -> dict[str, Kind]:
        """How to read each raw column."""
        kinds: dict[str, Kind] = {self.label.name: "label"} if self.label else {}
        kinds |= dict.fromkeys((encoder.name for encoder in self.numbers), "number")
        kinds |= dict.fromkeys((encoder.name for encoder in self.categories), "category")
        return kinds

    def arrow_schema(self) -> Any:
        """The schema of the Parquet files; final once all encoders are fitted."""
        return arrow_schema(self.schema({"train": 0, "test": 0}))

    def report(self, rows: dict[Part, int]) -> Report:
        """The report of a store with this number of rows."""
        warnings = [warning for encoder in self.encoders() for warning in encoder.warnings()]
        fitted = [e for e in self.categories if isinstance(e, FittedVocabularyEncoder)]
        unseen = {encoder.name: encoder.unseen for encoder in fitted if encoder.unseen}
        return Report(self.out, rows, tuple(warnings), unseen, describe_label(self.schema(rows)))


def unfitted_store(declared: RawSchema, out: Path, budget: VocabularyBudget) -> NewStore:
    """A store whose encoders are fitted on its own training rows."""
    label = LabelEncoder(declared.label, declared.positive) if declared.label else None
    numbers = [NumberEncoder(name, number) for name, number in declared.numbers.items()]
    categories: list[CategoryEncoder] = [
        VocabularyEncoder(name, category, budget)
        if category.buckets is None
        else HashEncoder(name, category)
        for name, category in declared.categories.items()
    ]

    def schema(rows: dict[Part, int]) -> StoreSchema:
        return StoreSchema(
            id=declared.id,
            label=declared.label,
            split=declared.split,
            source=declared.source,
            label_type=label.type if label else None,
            classes=label.classes if label else None,
            numbers={encoder.name: encoder.fitted() for encoder in numbers},
            categories={encoder.name: encoder.fitted() for encoder in categories},
            rows=rows,
        )

    return NewStore(out, label, numbers, categories, schema)


def fitted_store(fitted: StoreSchema, out: Path, *, labelled: bool) -> NewStore:
    """A store that uses the fitted encoders of an existing store, from its schema."""
    label: FittedLabelEncoder | None = None
    if fitted.label and fitted.label_type and labelled:
        label = FittedLabelEncoder(fitted.label, fitted.label_type, fitted.classes)
    numbers = [NumberEncoder(name, number) for name, number in fitted.numbers.items()]
    categories: list[CategoryEncoder] = [
        FittedVocabularyEncoder(name, category)
        if category.buckets is None
        else HashEncoder(name, category)
        for name, category in fitted.categories.items()
    ]

    def schema(rows: dict[Part, int]) -> StoreSchema:
        labels = {"labelled": label is not None or fitted.label is None}
        return fitted.model_copy(update={"rows": rows, **labels})

    return NewStore(out, label, numbers, categories, schema)
