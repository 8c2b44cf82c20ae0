"""A small store for the tests of data, and ways to change its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from celu.data.memory_map import StoreDatasets, open_datasets
from celu.data.store import Store

SECRET = 87654.25  # is in every bad row; no message may show it
ROWS = 200


def columns(**changes: Any) -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        "label": (random.random(ROWS) < 0.3).astype(np.float32),
        "x": random.normal(size=ROWS).astype(np.float32),
        "y": random.normal(size=ROWS).astype(np.float32),
        "c": random.integers(0, 7, ROWS).astype(np.int32),
        "d": random.integers(0, 5, ROWS).astype(np.int32),
    } | changes


SIZES = {"c": 7, "d": 5}


def rows_of(store: Store, **options: Any) -> StoreDatasets:
    return open_datasets(store, store.inputs(), label=True, **options)


def rewrite(store: Store, change: Callable[[pa.Table], pa.Table], part: str = "train") -> None:
    file = store.path / f"{part}.parquet"
    table = change(pq.read_table(file))
    pq.write_table(table, file, write_page_checksum=True)


def with_column(name: str, values: Any, type_: pa.DataType | None = None) -> Callable[..., Any]:
    def change(table: pa.Table) -> pa.Table:
        at = table.column_names.index(name)
        return table.set_column(at, name, pa.array(values(table[name].to_pylist()), type_))

    return change


def put(index: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [*values[:index], value, *values[index + 1 :]]


def edit_schema(store: Store, **changes: Any) -> None:
    path = store.path / "schema.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
