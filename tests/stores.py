"""Small stores for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from celu.config.schema import Split
from celu.data.store import Store, StoreWriter, coded_schema, open_store, with_ids


def ids_of(part: str, num_rows: int) -> list[str]:
    return [f"{part}-{row}" for row in range(num_rows)]


def write_store(
    path: Path,
    columns: Mapping[str, Any],
    sizes: Mapping[str, int] | None = None,
    *,
    test: Mapping[str, Any] | None = None,
    validation: Mapping[str, Any] | None = None,
    ids: Mapping[str, Sequence[str]] | None = None,
    seed: int = 1,
) -> Store:
    """A store with these columns; `test` defaults to the training rows, `validation` to none."""
    split = Split(seed=seed, validation=0.1 if validation is not None else 0.0)
    rows = {"train": columns, "test": test or columns, "validation": validation or {}}
    schema = coded_schema(list(columns), sizes or {}, split)
    with StoreWriter(path, schema) as store:
        for part in split.parts:
            table = pa.table(dict(rows[part]))
            names = ids_of(part, table.num_rows) if ids is None else list(ids[part])
            store.write(part, with_ids(table, names, split))
    return open_store(path)
