"""Refuses Parquet files of a few kilobytes that declare gigabytes, such as a page of zeros."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from celu.data.parquet_footer import column_sizes
from celu.errors import DataError

_MAX_CHUNK_BYTES = 64 << 20  # a column of a row group may be larger, if it compresses like data
_MAX_RATIO = 1000


def check_sizes(path: Path, columns: Container[str]) -> None:
    """Raise DataError if one of these columns declares far more bytes than the file has for it.

    A column may be one of lists, whose values the file names COLUMN.list.element or alike.
    """
    try:
        chunks = list(column_sizes(path))
    except ValueError as error:
        raise DataError(f"{path}: expected a readable file, got: {error}") from error
    for chunk in chunks:
        limit = max(_MAX_CHUNK_BYTES, _MAX_RATIO * chunk.compressed)
        column = chunk.name
        while column not in columns and "." in column:
            column = column.rpartition(".")[0]
        if column in columns and chunk.uncompressed > limit:
            raise DataError(
                f"{path}: column {column!r}: row group {chunk.row_group} declares "
                f"{chunk.uncompressed:,} bytes, more than {_MAX_RATIO} times its size in the file; "
                "expected data, got padding. Write the file again with smaller row groups"
            )
