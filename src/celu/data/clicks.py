"""Made-up click data in the shapes of Criteo and Avazu, of any size, from a seed.

Fields are drawn apart from one another, ids skewed like Zipf's law. A hidden logistic model gives
the label: an effect of every field, and the inner product of a guest's and a host's latent vector,
which no sum of two separate models can express. It does not imitate the real sets beyond their
fields, sizes, skew and click rate: say "synthetic" beside a figure that comes from here.

Rows are the same on any machine (see `click_model`). Only `write_clicks` needs pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
from celu.data.table import SIZES_KEY
from celu.errors import DataError

__all__ = ["Clicks", "Shape", "click_chunk", "field_sizes", "write_clicks"]

CHUNK_ROWS = 1 << 17

# Chunks from here on are the test part, so that it is the same for any number of training rows.
_TEST_CHUNK = 1 << 31


@dataclass(frozen=True)
class Clicks:
    """One chunk of rows; row i of `guest`, `host` and `label` is one impression."""

    guest: dict[str, Column]
    host: dict[str, Column]
    label: Floats


def click_chunk(
    shape: Shape, *, seed: int, chunk: int, rows: int, max_codes: int = MAX_CODES
) -> Clicks:
    """Return the first `rows` rows of a chunk, the same whichever chunks were made before.

    The hidden model depends on `shape`, `seed` and `max_codes` only; the rows on `chunk` too.
    Raises DataError for an unknown shape or a `max_codes` out of range.
    """
    hidden = hidden_model(shape, seed, max_codes)
    # One stream a column: a column's rows are then a prefix of a longer chunk's.
    num_columns = len(hidden.guest) + len(hidden.host)
    *streams, last = np.random.SeedSequence((seed, chunk)).spawn(num_columns + 1)
    guest, host, logit = draw_and_score(hidden, iter(streams), rows)
    # logit > log(u / (1 - u)) happens with probability sigmoid(logit), and needs no exponential.
    threshold = log_odds().take(raw_bits(last, rows) >> np.uint32(16))
    return Clicks(guest, host, label=(logit > threshold).astype(np.float32))


def write_clicks(
    folder: Path,
    shape: Shape,
    *,
    rows: int,
    seed: int = 1,
    test_fraction: float = 0.1,
    max_codes: int = MAX_CODES,
) -> None:
    """Write `folder`/guest and `folder`/host, each with train.parquet and test.parquet.

    Works chunk by chunk, so memory does not grow with `rows`. A file appears under its name only
    when its part is complete. Raises DataError for fewer than 10 rows or an empty part.
    """
    if rows < 10:
        raise DataError(f"click data needs at least 10 rows, got {rows}")
    num_test = round(rows * test_fraction)
    if not 0 < num_test < rows:
        raise DataError(f"test_fraction {test_fraction} leaves a part of {rows} rows empty")
    sizes = field_sizes(shape, max_codes=max_codes)
    for part, first, count in (("train", 0, rows - num_test), ("test", _TEST_CHUNK, num_test)):
        chunks = (
            click_chunk(
                shape,
                seed=seed,
                chunk=first + start // CHUNK_ROWS,
                rows=min(CHUNK_ROWS, count - start),
                max_codes=max_codes,
            )
            for start in range(0, count, CHUNK_ROWS)
        )
        _write_part(folder, part, sizes, chunks)


def _write_part(
    folder: Path, part: str, sizes: dict[str, dict[str, int]], chunks: Iterator[Clicks]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = {party: folder / party / f"{part}.parquet" for party in ("guest", "host")}
    partial = {party: path.with_name(path.name + ".partial") for party, path in paths.items()}
    writers: dict[str, Any] = {}
    with ExitStack() as stack:
        for clicks in chunks:
            columns = {"guest": clicks.guest | {"label": clicks.label}, "host": clicks.host}
            for party, path in paths.items():
                table = pa.table(columns[party]).replace_schema_metadata(
                    {SIZES_KEY: json.dumps(sizes[party]).encode()}
                )
                if party not in writers:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    writers[party] = stack.enter_context(
                        pq.ParquetWriter(partial[party], table.schema)
                    )
                writers[party].write_table(table)
    for party, path in paths.items():
        partial[party].replace(path)
