"""Small Parquet files that declare much data: refused before it is allocated."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.config.columns import Category, Number
from celu.config.schema import RawSchema
from celu.errors import DataError
from prepare.samples import make

ROWS = 65_536


def repeated(text: str) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array([text]))


def ids() -> pa.Array:
    return pa.array([f"{number}" for number in range(ROWS)])


SCHEMA = RawSchema(id="id", numbers={"x": Number()}, categories={"c": Category(buckets=8)})


def peak_while_refusing(source: Path, out: Path, match: str) -> int:
    """The most bytes that Arrow held at a time."""
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    previous = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(DataError, match=match):
            make(source, SCHEMA, out)
    finally:
        pa.set_memory_pool(previous)
    assert not out.exists()
    peak: int = pool.max_memory()
    return peak


@pytest.mark.parametrize("column", ["id", "x"])
def test_one_long_text_in_every_row_is_refused_before_it_is_copied(
    column: str, tmp_path: Path
) -> None:
    columns = {"id": ids(), "x": pa.array(range(ROWS)), "c": repeated("c")}
    columns[column] = repeated("a" * 16_384)
    source = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), source, compression="zstd")
    match = rf"column '{column}': expected at most 268,435,456 bytes of text in 65,536 rows, got"
    assert peak_while_refusing(source, tmp_path / "store", match) < 200 << 20


def test_a_page_that_decompresses_to_a_thousand_times_its_size_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "rows.parquet"
    table = pa.table({"id": ids(), "x": pa.array([0] * ROWS), "c": ["a" * 2048] * ROWS})
    pq.write_table(table, source, compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    match = "column 'c': row group 0 declares .* more than 1000 times its size in the file"
    assert peak_while_refusing(source, tmp_path / "store", match) < 64 << 20
