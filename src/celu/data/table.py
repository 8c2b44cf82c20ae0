"""A party's rows in memory, as tensors: one a named input, and the labels where there are any.

It reads Parquet whose rows already stand in the agreed order. It does not align parties, and it
holds the whole table: stores larger than memory are not its business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from celu.errors import DataError

SIZES_KEY = b"celu.sizes"  # Parquet schema metadata: JSON, id column -> number of codes


class Batch(NamedTuple):
    """Some rows: inputs by name, each [B, columns]; labels [B] where the party holds them."""

    inputs: dict[str, Tensor]
    labels: Tensor | None


@dataclass(frozen=True)
class Table:
    """Rows as tensors. `sizes` gives, for an input of ids, the number of codes of each column."""

    inputs: dict[str, Tensor]
    labels: Tensor | None = None
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = {name: len(t) for name, t in self.inputs.items()}
        if self.labels is not None:
            counts["labels"] = len(self.labels)
        if len(set(counts.values())) != 1:
            raise DataError(f"a table needs one number of rows for all its columns, got {counts}")

    @property
    def num_rows(self) -> int:
        """How many rows."""
        return len(self.labels if self.labels is not None else next(iter(self.inputs.values())))

    def take(self, rows: Tensor | slice) -> Batch:
        """The rows of these numbers, in this order."""
        labels = None if self.labels is None else self.labels[rows]
        return Batch({name: t[rows] for name, t in self.inputs.items()}, labels)

    def to(self, device: torch.device) -> Table:
        """The same table on a device."""
        labels = None if self.labels is None else self.labels.to(device)
        return Table({n: t.to(device) for n, t in self.inputs.items()}, labels, self.sizes)


def read_table(path: Path, inputs: Mapping[str, Sequence[str]], label: str | None) -> Table:
    """Read the named columns of a Parquet file.

    A column of integers is an id column (codes from 0), one of floats a numeric column; an input
    holds columns of one sort. Raises DataError, naming the file and the column, for whatever is
    missing, empty, null, not finite or of another type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = [c for columns in inputs.values() for c in columns] + ([label] if label else [])
    try:
        schema = pq.read_schema(path)
        missing = [c for c in wanted if c not in schema.names]
        if missing:
            raise DataError(
                f"{path}: expected a column {missing[0]!r}, got {', '.join(schema.names[:20])}"
            )
        arrow = pq.read_table(path, columns=sorted(set(wanted)))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: expected a readable Parquet file, got: {error}") from error
    if arrow.num_rows == 0:
        raise DataError(f"{path}: expected rows, got none")
    declared = _declared_sizes(path, schema.metadata or {})
    tensors: dict[str, Tensor] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for name, columns in inputs.items():
        if not columns:
            raise DataError(f"{path}: input {name!r}: expected columns, got none")
        arrays = [_column(path, arrow, column) for column in columns]
        sorts = {a.dtype.kind for a in arrays}
        if len(sorts) != 1:
            raise DataError(
                f"{path}: input {name!r} mixes id and numeric columns; expected one sort: "
                "put them under two inputs"
            )
        stacked = np.stack(arrays, axis=1)
        tensors[name] = torch.from_numpy(stacked)
        if sorts == {"i"}:
            sizes[name] = tuple(
                _size(path, column, array, declared)
                for column, array in zip(columns, arrays, strict=True)
            )
    labels = torch.from_numpy(_column(path, arrow, label)) if label else None
    return Table(tensors, labels, sizes)


def _column(path: Path, arrow: Any, column: str) -> np.ndarray[Any, np.dtype[Any]]:
    data = arrow.column(column)
    if data.null_count:
        raise DataError(
            f"{path}: column {column!r}: expected no nulls, got {data.null_count}; "
            "fill or drop them first"
        )
    array: np.ndarray[Any, np.dtype[Any]] = data.to_numpy()
    if array.dtype.kind in "iub":
        array = array.astype(np.int64)
        if array.min() < 0:
            raise DataError(
                f"{path}: column {column!r}: expected codes from 0, got negative ones "
                f"({int((array < 0).sum())} rows)"
            )
        return array
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)  # beyond its range a number becomes Inf: look after
        bad = int((~np.isfinite(array)).sum())
        if bad:
            raise DataError(
                f"{path}: column {column!r}: expected finite float32 numbers, "
                f"got NaN or Inf in {bad} rows"
            )
        return array
    raise DataError(
        f"{path}: column {column!r}: expected integers (ids) or floats, got {data.type}"
    )


def _declared_sizes(path: Path, metadata: Mapping[bytes, bytes]) -> dict[str, int]:
    if SIZES_KEY not in metadata:
        return {}
    try:
        sizes = json.loads(metadata[SIZES_KEY])
        return {str(name): int(size) for name, size in sizes.items()}
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{path}: metadata {SIZES_KEY.decode()}: expected a JSON object of column to size"
        ) from error


def _size(
    path: Path,
    column: str,
    array: np.ndarray[Any, np.dtype[Any]],
    declared: Mapping[str, int],
) -> int:
    seen = int(array.max()) + 1
    size = declared.get(column, seen)
    if seen > size:
        raise DataError(
            f"{path}: column {column!r}: expected codes below {size} as its file declares, "
            f"got {int((array >= size).sum())} rows beyond"
        )
    return size
