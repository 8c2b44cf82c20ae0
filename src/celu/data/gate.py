"""The data gate: checks every row of a store before training.

Findings give a column and a count, never a value. Errors stop a run, warnings do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from celu.config.columns import FittedBag, FittedCategory
from celu.config.schema import ID, LABEL, TAG, WEIGHT, Part, StoreSchema, stored_columns
from celu.data.store import Store, tags_of, to_numpy
from celu.data.tags import TAG_BYTES, Tags
from celu.errors import DataError

_MAX_LABELS = 1000  # more distinct labels are not counted


@dataclass(frozen=True)
class Finding:
    """A problem with a column."""

    level: Literal["error", "warning"]
    part: str
    column: str
    what: str

    def __str__(self) -> str:
        return f"{self.part}: column {self.column!r}: {self.what}"


@dataclass
class ColumnFacts:
    """Statistics of one column in one part."""

    rows: int = 0
    nulls: int = 0
    bad: int = 0  # NaN or Inf; weights below 0; codes below 0 or beyond the declared size
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")
    missing: int = 0  # code 0, and bags without values
    unseen: int = 0  # code 1 of a vocabulary
    codes: np.ndarray[Any, np.dtype[np.bool_]] | None = None  # which codes occur
    values: set[float] = field(default_factory=set)  # distinct labels, up to a maximum

    @property
    def mean(self) -> float:
        """The mean of the valid values."""
        return self.total / max(1, self.rows - self.nulls - self.bad)

    @property
    def coverage(self) -> float:
        """The share of a category's codes that occur."""
        return 0.0 if self.codes is None else float(self.codes.mean())


class Gate:
    """Collects statistics of a store, batch by batch, and derives findings from them."""

    def __init__(self, schema: StoreSchema) -> None:
        self._schema = schema
        self.columns = [
            *([LABEL] if schema.has_labels else []),
            *([WEIGHT] if schema.has_weights else []),
            *stored_columns(schema),
        ]
        self.facts: dict[Part, dict[str, ColumnFacts]] = {
            part: {name: ColumnFacts() for name in [ID, *self.columns]} for part in schema.parts
        }
        self._tags: list[Tags] = []
        classes = schema.classes  # text labels are stored as codes
        self._num_codes = len(classes) if classes and isinstance(classes[0], str) else None

    def add(self, part: Part, batch: Any) -> None:
        """Add a record batch with the columns `id`, `tag` and all of `columns`."""
        self._tags.append(tags_of(batch))
        facts = self.facts[part]
        facts[ID].rows += batch.num_rows
        facts[ID].nulls += batch.column(ID).null_count
        for name in self.columns:
            column, fact = batch.column(name), facts[name]
            fact.rows += batch.num_rows
            fact.nulls += column.null_count
            category = self._schema.categories.get(name)
            if name in self._schema.bags:
                values = _add_bags(fact, to_numpy(column.drop_null()), self._schema.bags[name])
            else:
                values = column.drop_null().to_numpy(zero_copy_only=False)
            if category is not None:
                values = _add_codes(fact, values, category)
            elif name == LABEL and self._num_codes is not None:
                within = (values >= 0) & (values < self._num_codes)
                fact.bad += int((~within).sum())
                values = values[within]
            elif values.dtype.kind == "f":
                valid = np.isfinite(values) & ((values >= 0) | (name != WEIGHT))
                fact.bad += int((~valid).sum())
                values = values[valid]
            if len(values):
                fact.low = min(fact.low, float(values.min()))
                fact.high = max(fact.high, float(values.max()))
                fact.total += float(values.sum(dtype=np.float64))
            if name == LABEL and len(fact.values) <= _MAX_LABELS:
                fact.values |= set(np.unique(values).tolist())

    def findings(self) -> list[Finding]:
        """All findings, errors first."""
        found = [*self._id_findings()]
        for part in self._schema.parts:
            if self._schema.rows[part]:
                for name in self.columns:
                    found += _column_findings(part, name, self.facts[part][name])
        return sorted(found, key=lambda finding: finding.level)

    def _id_findings(self) -> Iterator[Finding]:
        for part in self._schema.parts:
            nulls = self.facts[part][ID].nulls
            if nulls:
                yield Finding("error", part, ID, f"expected an id in every row, got {nulls} nulls")
        tags = np.concatenate([np.zeros((0, TAG_BYTES), np.uint8), *self._tags])
        distinct = len(np.unique(tags.view(f"V{TAG_BYTES}")))
        if distinct < len(tags):
            yield Finding(
                "error",
                "all parts",
                ID,
                f"expected each id once, got {len(tags) - distinct} repeats",
            )


def check_store(store: Store) -> Gate:
    """Check all rows of a store; raises DataError only for files that cannot be read."""
    gate = Gate(store.schema)
    for part in store.parts:
        for batch in store.batches(part, [ID, TAG, *gate.columns]):
            gate.add(part, batch)
    return gate


def raise_errors(store: Store, findings: list[Finding]) -> list[str]:
    """Raise DataError if there are errors; return the warnings as text."""
    errors = [str(finding) for finding in findings if finding.level == "error"]
    if errors:
        more = f"; and {len(errors) - 10} more" if len(errors) > 10 else ""
        raise DataError(
            f"{store.path}: {'; '.join(errors[:10])}{more}. "
            'Prepare the store again; "celu inspect" shows all findings'
        )
    return [str(finding) for finding in findings]


def _add_codes(fact: ColumnFacts, values: Any, category: FittedCategory) -> Any:
    """Update the facts, and return the valid codes."""
    within = (values >= 0) & (values < category.size)
    fact.bad += int((~within).sum())
    values = values[within]
    if fact.codes is None:
        fact.codes = np.zeros(category.size, np.bool_)
    fact.codes[values] = True
    fact.missing += int((values == 0).sum())
    if category.vocabulary is not None:
        fact.unseen += int((values == 1).sum())
    return values


def _add_bags(fact: ColumnFacts, rows: Any, bag: FittedBag) -> Any:
    """Update the facts, and return the valid codes of values; see `_add_codes`."""
    within = (rows >= 0) & (rows < bag.size)
    fact.bad += int((~within).any(axis=1).sum())
    codes = rows[within]
    if fact.codes is None:
        fact.codes = np.zeros(bag.size, np.bool_)
    fact.codes[codes] = True
    fact.missing += int((rows == 0).all(axis=1).sum())
    if bag.vocabulary is not None:
        fact.unseen += int((rows == 1).any(axis=1).sum())
    return codes[codes > 0]


def _column_findings(part: Part, name: str, fact: ColumnFacts) -> Iterator[Finding]:
    is_category = fact.codes is not None
    if fact.nulls == fact.rows:
        yield Finding("error", part, name, f"all {fact.rows} values are null")
        return
    if fact.nulls:
        yield Finding("error", part, name, f"expected no nulls, got {fact.nulls}")
    if fact.bad:
        what = "codes from 0 to below the declared size" if is_category else "finite numbers"
        what = "finite numbers, or codes of the schema's classes" if name == LABEL else what
        what += " from 0" if name == WEIGHT else ""
        yield Finding("error", part, name, f"expected {what}, got others in {fact.bad} rows")
    if name == LABEL:
        if len(fact.values) == 1:
            level: Literal["error", "warning"] = "error" if part == "train" else "warning"
            yield Finding(level, part, name, f"all {fact.rows} rows have the same label")
    elif name == WEIGHT and fact.high == 0:
        yield Finding("error", part, name, f"all {fact.rows} rows have the weight 0")
    elif is_category and fact.missing == fact.rows:
        yield Finding("warning", part, name, f"all {fact.rows} values are missing")
    elif part == "train" and fact.low == fact.high and not 0 < fact.missing < fact.rows:
        yield Finding("warning", part, name, f"all {fact.rows} values are the same")
