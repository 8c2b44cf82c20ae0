"""A store that is being prepared: its encoders, and the schema that they produce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celu.config.columns import FittedBag, FittedCategory
from celu.config.schema import Part, RawSchema, StoreSchema, describe_label
from celu.data.store import arrow_schema
from celu.prepare.encoders.bags import BagEncoder
from celu.prepare.encoders.categories import (
    FittedVocabularyEncoder,
    HashEncoder,
    VocabularyBudget,
    VocabularyEncoder,
)
from celu.prepare.encoders.dates import DateEncoder
from celu.prepare.encoders.encoder import Encoder, Feature
from celu.prepare.encoders.labels import FittedLabelEncoder, LabelEncoder
from celu.prepare.encoders.numbers import NumberEncoder
from celu.prepare.encoders.quantiles import QuantileEncoder
from celu.prepare.encoders.weights import WeightEncoder
from celu.prepare.number_text import NumberStyle
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
    """A store that is being prepared; `schema` returns its schema, given the number of rows.

    `features` are in the order of the store's columns.
    """

    out: Path
    label: LabelEncoder | FittedLabelEncoder | None
    features: Sequence[Feature]
    schema: Callable[[dict[Part, int]], StoreSchema]
    weight: WeightEncoder | None = None
    budget: VocabularyBudget | None = None

    def encoders(self) -> list[Encoder]:
        """In the order of the store's columns."""
        first = [encoder for encoder in (self.label, self.weight) if encoder is not None]
        return [*first, *self.features]

    def kinds(self) -> dict[str, Kind]:
        """How to read each raw column."""
        kinds: dict[str, Kind] = {self.label.name: "label"} if self.label else {}
        kinds |= {self.weight.name: "number"} if self.weight else {}
        return kinds | {feature.name: feature.kind for feature in self.features}

    def list_bytes(self) -> int:
        """The size of the lists of codes in a row."""
        return sum(f.row_bytes for f in self.features if isinstance(f, BagEncoder))

    def arrow_schema(self) -> Any:
        """The schema of the Parquet files; final once all encoders are fitted."""
        return arrow_schema(self.schema({"train": 0, "test": 0}))

    def report(self, rows: dict[Part, int], id_warnings: Sequence[str] = ()) -> Report:
        """The report of a store with this number of rows."""
        warnings = [*id_warnings, *(w for encoder in self.encoders() for w in encoder.warnings())]
        unseen = {feature.name: feature.unseen for feature in self.features if feature.unseen}
        return Report(self.out, rows, tuple(warnings), unseen, describe_label(self.schema(rows)))


def unfitted_store(declared: RawSchema, out: Path, budget: VocabularyBudget) -> NewStore:
    """A store whose encoders are fitted on its own training rows."""
    label = None
    if declared.label:
        style = NumberStyle.of(declared.source)
        label = LabelEncoder(declared.label, declared.positive, style)
    weight = WeightEncoder(declared.weight) if declared.weight else None
    numbers = [NumberEncoder(name, number) for name, number in declared.numbers.items()]
    dates = [DateEncoder(name, date) for name, date in declared.dates.items()]
    filled: list[NumberEncoder | DateEncoder] = [*numbers, *dates]
    categories: dict[str, HashEncoder | VocabularyEncoder | QuantileEncoder] = {}
    for name, category in declared.categories.items():
        if category.quantiles is not None:
            categories[name] = QuantileEncoder(name, category)
        elif category.buckets is not None:
            categories[name] = HashEncoder(name, category)
        else:
            categories[name] = VocabularyEncoder(name, category, budget)
    bags = {
        name: BagEncoder(
            name,
            bag,
            VocabularyEncoder(name, bag, budget) if bag.buckets is None else HashEncoder(name, bag),
        )
        for name, bag in declared.bags.items()
    }

    def fitted_category(name: str) -> FittedCategory:
        fields, encoder = declared.categories[name].model_dump(), categories[name]
        if isinstance(encoder, QuantileEncoder):
            return FittedCategory(**fields, edges=encoder.edges())
        return FittedCategory(**fields, values=encoder.values())

    def schema(rows: dict[Part, int]) -> StoreSchema:
        return StoreSchema(
            id=declared.id,
            label=declared.label,
            weight=declared.weight,
            split=declared.split,
            source=declared.source,
            label_type=label.type if label else None,
            classes=label.classes if label else None,
            numbers={encoder.name: encoder.fitted() for encoder in numbers},
            categories={name: fitted_category(name) for name in categories},
            dates={encoder.name: encoder.fitted() for encoder in dates},
            bags={
                name: FittedBag(**declared.bags[name].model_dump(), values=encoder.values())
                for name, encoder in bags.items()
            },
            missing={e.name: e.num_missing for e in filled if e.num_missing},
            rows=rows,
        )

    features = [*numbers, *dates, *categories.values(), *bags.values()]
    return NewStore(out, label, features, schema, weight, budget)


def fitted_store(fitted: StoreSchema, out: Path, *, labelled: bool) -> NewStore:
    """A store that uses the fitted encoders of an existing store, from its schema.

    Its rows have no weights: they are not trained on.
    """
    label: FittedLabelEncoder | None = None
    style = NumberStyle.of(fitted.source)
    if fitted.label and fitted.label_type and labelled:
        label = FittedLabelEncoder(fitted.label, fitted.label_type, fitted.classes, style)
    filled: list[NumberEncoder | DateEncoder] = [
        *(NumberEncoder(name, number) for name, number in fitted.numbers.items()),
        *(DateEncoder(name, date) for name, date in fitted.dates.items()),
    ]
    features: list[Feature] = [*filled]
    for name, category in fitted.categories.items():
        if category.quantiles is not None:
            features.append(QuantileEncoder(name, category))
        else:
            features.append(_fitted_codes(name, category))
    features += [
        BagEncoder(name, bag, _fitted_codes(name, bag)) for name, bag in fitted.bags.items()
    ]

    def schema(rows: dict[Part, int]) -> StoreSchema:
        labels = {"labelled": label is not None or fitted.label is None}
        missing = {encoder.name: encoder.num_missing for encoder in filled}
        others: dict[str, Any] = {"missing": missing, "weight": None, **labels}
        return fitted.model_copy(update={"rows": rows, **others})

    return NewStore(out, label, features, schema)


def _fitted_codes(
    name: str, column: FittedCategory | FittedBag
) -> HashEncoder | FittedVocabularyEncoder:
    if column.buckets is not None:
        return HashEncoder(name, column)
    return FittedVocabularyEncoder(name, column)
