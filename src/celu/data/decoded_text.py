"""A bound on the text of a dictionary: a few kilobytes can declare gigabytes, as one long value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from celu.errors import DataError

MAX_BATCH_TEXT = 256 << 20  # bytes in a column of a batch: 4 KiB a row on average


def decode_text(path: Path, column: str, values: Any, rows: int, advice: str) -> Any:
    """A dictionary of text as an array, of a file that is read by batches of this many rows.

    Raises DataError, with the advice, before too much text is copied.
    """
    lengths = pc.binary_length(values.dictionary).cast(pa.int64())
    num_bytes = pc.sum(lengths.take(values.indices)).as_py() or 0
    if num_bytes > MAX_BATCH_TEXT:
        raise DataError(
            f"{path}: column {column!r}: expected at most {MAX_BATCH_TEXT:,} bytes of text in "
            f"{rows:,} rows, got {num_bytes:,}; {advice}"
        )
    return values.dictionary_decode()
