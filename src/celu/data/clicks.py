"""Synthetic click data in the shapes of Criteo and Avazu, of any size, from a seed.

Fields are independent, ids follow Zipf's law. A hidden logistic model generates the label: an
effect of every field, and the inner product of two latent vectors, one of the guest's fields and
one of the host's, which no sum of two separate models can express. The data resembles the real sets
only in fields, sizes, skew and click rate: call every result on it synthetic.

Rows are the same on any machine (see `click_model`). Only `write_clicks` needs pyarrow.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from celu.config.schema import Part, Split
from celu.data.click_model import (
    MAX_CODES,
    Column,
    Floats,
    Shape,
    draw_and_score,
    field_sizes,
    hidden_model,
    log_odds,
    raw_bits,
)
from celu.data.store import StoreWriter, coded_schema, with_ids
from celu.errors import DataError

__all__ = ["Clicks", "Shape", "click_chunk", "field_sizes", "write_clicks"]

CHUNK_ROWS = 1 << 17

# The first chunk of each part. Held-out rows do not depend on the number of training rows.
_FIRST_CHUNK: dict[Part, int] = {"train": 0, "test": 1 << 31, "validation": 1 << 30}


@dataclass(frozen=True)
class Clicks:
    """One chunk of rows; row i of `guest`, `host` and `label` is one impression."""

    guest: dict[str, Column]
    host: dict[str, Column]
    label: Floats


def click_chunk(
    shape: Shape, *, seed: int, chunk: int, rows: int, max_codes: int = MAX_CODES
) -> Clicks:
    """Return the first `rows` rows of a chunk, independent of other chunks.

    The hidden model depends on `shape`, `seed` and `max_codes` only, the rows also on `chunk`.
    Raises DataError for an unknown shape or a `max_codes` out of range.
    """
    hidden = hidden_model(shape, seed, max_codes)
    # One stream for each column: a column of a short chunk is then a prefix of a longer chunk's.
    num_columns = len(hidden.guest) + len(hidden.host)
    *streams, last = np.random.SeedSequence((seed, chunk)).spawn(num_columns + 1)
    guest, host, logit = draw_and_score(hidden, iter(streams), rows)
    # logit > log(u / (1 - u)) has probability sigmoid(logit), and needs no exponential.
    threshold = log_odds().take(raw_bits(last, rows) >> np.uint32(16))
    return Clicks(guest, host, label=(logit > threshold).astype(np.float32))


def write_clicks(
    folder: Path | str,
    shape: Shape,
    *,
    rows: int,
    seed: int = 1,
    test_fraction: float = 0.1,
    validation_fraction: float = 0.0,
    max_codes: int = MAX_CODES,
) -> None:
    """Write the stores `folder`/guest/store and `folder`/host/store.

    Memory does not grow with `rows`. A store appears under its name only when it is complete.
    Raises DataError for fewer than 10 rows or an empty part.
    """
    folder = Path(folder)
    if rows < 10:
        raise DataError(f"rows: expected at least 10 rows, got {rows}")
    num_test, num_validation = round(rows * test_fraction), round(rows * validation_fraction)
    if not 0 < num_test < rows - num_validation:
        raise DataError(f"test_fraction: {test_fraction} of {rows} rows leaves a part empty")
    sizes = field_sizes(shape, max_codes=max_codes)
    split = Split(seed=seed, test=test_fraction, validation=validation_fraction)
    sample = _tables(click_chunk(shape, seed=seed, chunk=0, rows=1, max_codes=max_codes))
    counts: dict[Part, int] = {"train": rows - num_test - num_validation, "test": num_test}
    if split.validation:
        counts["validation"] = num_validation
    with ExitStack() as stack:
        stores = {
            party: stack.enter_context(
                StoreWriter(
                    folder / party / "store",
                    coded_schema(table.column_names, sizes[party], split),
                )
            )
            for party, table in sample.items()
        }
        for part, num_rows in counts.items():
            for start in range(0, num_rows, CHUNK_ROWS):
                count = min(CHUNK_ROWS, num_rows - start)
                chunk = _FIRST_CHUNK[part] + start // CHUNK_ROWS
                clicks = click_chunk(shape, seed=seed, chunk=chunk, rows=count, max_codes=max_codes)
                ids = [f"{part}-{row}" for row in range(start, start + count)]
                for party, table in _tables(clicks).items():
                    stores[party].write(part, with_ids(table, ids, split))


def _tables(clicks: Clicks) -> dict[str, Any]:
    import pyarrow as pa

    return {
        "guest": pa.table(clicks.guest | {"label": clicks.label}),
        "host": pa.table(clicks.host),
    }
