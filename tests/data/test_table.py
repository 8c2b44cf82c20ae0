"""A party's rows: what is read from a file, and what is refused and how."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from celu.data.table import SIZES_KEY, Table, read_table
from celu.errors import DataError

SECRET = 987654  # stands in every bad column; no message may show it


def file(folder: Path, columns: Mapping[str, Any], metadata: bytes | None = None) -> Path:
    table = pa.table(dict(columns))
    if metadata is not None:
        table = table.replace_schema_metadata({SIZES_KEY: metadata})
    path = folder / "rows.parquet"
    pq.write_table(table, path)
    return path


def test_columns_become_one_tensor_an_input_in_the_order_asked_for(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        {
            "a": pa.array([1, 2, 0], pa.int8()),
            "b": pa.array([5, 0, 1], pa.uint32()),
            "flag": [True, False, True],
            "x": [0.5, 1.5, 2.5],
            "y": pa.array([1, 2, 3], pa.float32()),
            "late": [0, 1, 1],
        },
    )
    table = read_table(path, {"ids": ["b", "a", "flag"], "numbers": ["y", "x"]}, "late")
    assert table.num_rows == 3
    assert table.inputs["ids"].tolist() == [[5, 1, 1], [0, 2, 0], [1, 0, 1]]
    assert table.inputs["ids"].dtype == torch.int64
    assert table.inputs["numbers"].tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert table.inputs["numbers"].dtype == torch.float32
    assert table.labels is not None
    assert table.labels.tolist() == [0, 1, 1]
    assert table.sizes == {"ids": (6, 3, 2)}


def test_a_host_has_no_labels_and_a_guest_may_have_nothing_else(tmp_path: Path) -> None:
    path = file(tmp_path, {"x": [0.5, 1.5], "y": [0.25, 4.0]})
    assert read_table(path, {"numbers": ["x"]}, None).labels is None
    alone = read_table(path, {}, "y")
    assert alone.num_rows == 2
    assert alone.labels is not None
    assert alone.labels.tolist() == [0.25, 4.0]


def test_a_column_may_serve_two_inputs_and_bear_a_dotted_name(tmp_path: Path) -> None:
    path = file(tmp_path, {"a.b": [1, 0], "c": [0.5, 1.5]})
    table = read_table(path, {"one": ["a.b"], "two": ["a.b"], "three": ["c"]}, None)
    assert table.inputs["one"].tolist() == table.inputs["two"].tolist() == [[1], [0]]


def test_rows_keep_their_order_over_many_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": np.arange(1000)}), path, row_group_size=7)
    assert read_table(path, {"ids": ["a"]}, None).inputs["ids"][:, 0].tolist() == [*range(1000)]


def test_sizes_come_from_the_file_where_it_declares_them_and_else_from_the_rows(
    tmp_path: Path,
) -> None:
    declared = json.dumps({"a": 10, "elsewhere": 4}).encode()
    path = file(tmp_path, {"a": [1, 2], "b": [1, 2]}, declared)
    assert read_table(path, {"ids": ["b", "a"]}, None).sizes == {"ids": (3, 10)}


NULL = pa.array([SECRET, None, SECRET])
BAD_COLUMNS = {
    "nulls": (NULL, "expected no nulls, got 1"),
    "all null": (pa.nulls(3), "expected no nulls, got 3"),
    "null numbers": (pa.array([0.5, None, None]), "expected no nulls, got 2"),
    "negative codes": ([-SECRET, 0, -1], r"expected codes from 0, got negative ones \(2 rows\)"),
    "codes beyond int64": (
        pa.array([2**64 - SECRET, 0, 1], pa.uint64()),
        r"expected codes .*\(1 rows\)",
    ),
    "NaN": (
        [float("nan"), SECRET, 0.5],
        "expected finite float32 numbers, got NaN or Inf in 1 rows",
    ),
    "Inf": ([float("inf"), -float("inf"), SECRET], "got NaN or Inf in 2 rows"),
    "beyond float32": ([1e300, float(SECRET), -1e39], "got NaN or Inf in 2 rows"),
    "text": ([str(SECRET)] * 3, "expected integers .* got string"),
    "dates": (pa.array([SECRET] * 3, pa.date32()), r"expected integers .* got date32\[day\]"),
    "decimals": (pa.array([SECRET] * 3).cast(pa.decimal128(20)), "got decimal128"),
    "lists": ([[SECRET]] * 3, "got list"),
}


@pytest.mark.parametrize(("values", "said"), BAD_COLUMNS.values(), ids=BAD_COLUMNS)
@pytest.mark.parametrize("role", ["input", "label"])
def test_a_column_that_will_not_do_is_named_and_no_value_of_it_shown(
    tmp_path: Path, values: Any, said: str, role: str
) -> None:
    path = file(tmp_path, {"fine": [0, 1, 2], "bad": values})
    inputs = {"ids": ["fine"], **({"odd": ["bad"]} if role == "input" else {})}
    with pytest.raises(DataError, match=said) as error:
        read_table(path, inputs, "bad" if role == "label" else None)
    assert str(error.value).startswith(f"{path}: column 'bad': ")
    assert str(SECRET) not in str(error.value).replace(str(path), "")
    assert error.value.public() == "DataError", "a peer learns no path and no column"


def test_codes_beyond_the_declared_size_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, {"a": [9, SECRET, 10]}, b'{"a": 10}')
    said = f"{path}: column 'a': expected codes below 10 as its file declares, got 2 rows beyond"
    with pytest.raises(DataError, match=re.escape(said)) as error:
        read_table(path, {"ids": ["a"]}, None)
    assert str(SECRET) not in str(error.value)


@pytest.mark.parametrize(
    "metadata",
    [b"", b"{", b"[1]", b"3", b'{"a": "many"}', b'{"a": null}', b'{"a": 1e999}', b"\xff"],
)
def test_sizes_that_are_no_sizes_are_refused(tmp_path: Path, metadata: bytes) -> None:
    path = file(tmp_path, {"a": [0, 1]}, metadata)
    with pytest.raises(DataError, match=f"{path}: metadata celu.sizes: expected a JSON object"):
        read_table(path, {"ids": ["a"]}, None)


def test_an_absent_column_is_named(tmp_path: Path) -> None:
    path = file(tmp_path, {"a": [0, 1], "b": [0, 1]})
    for inputs, label in (({"ids": ["a", "c"]}, None), ({"ids": ["a"]}, "c")):
        with pytest.raises(DataError, match=f"{path}: expected a column 'c', got a, b"):
            read_table(path, inputs, label)


def test_an_input_of_two_sorts_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, {"a": [0, 1], "x": [0.5, 1.5]})
    with pytest.raises(DataError, match=f"{path}: input 'both' mixes id and numeric columns"):
        read_table(path, {"both": ["a", "x"]}, None)


def test_an_input_without_columns_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, {"a": [0, 1]})
    with pytest.raises(DataError, match=f"{path}: input 'none': expected columns, got none"):
        read_table(path, {"none": [], "ids": ["a"]}, None)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, {"a": pa.array([], pa.int64())})
    with pytest.raises(DataError, match=f"{path}: expected rows, got none"):
        read_table(path, {"ids": ["a"]}, None)


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([0, 1])] * 2, names=["a", "a"]), path)
    with pytest.raises(DataError, match=f"{path}: "):
        read_table(path, {"ids": ["a"]}, None)


def test_a_file_that_is_absent_cut_or_no_parquet_is_named(tmp_path: Path) -> None:
    path = file(tmp_path, {"a": np.arange(1000)})
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], whole[4:], b"", b"a,b\n1,2\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{path}: expected a readable Parquet file"):
            read_table(path, {"ids": ["a"]}, None)
    for odd in (tmp_path / "absent.parquet", tmp_path):
        with pytest.raises(DataError, match=f"{odd}: expected a readable Parquet file"):
            read_table(odd, {"ids": ["a"]}, None)


def test_a_file_whose_pages_were_overwritten_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": np.arange(1000)}), path, use_dictionary=False)
    damaged = bytearray(path.read_bytes())
    damaged[4:64] = b"\xff" * 60
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=f"{path}: "):
        read_table(path, {"ids": ["a"]}, None)


# Rows in memory.


@pytest.fixture
def table() -> Table:
    inputs = {"ids": torch.arange(10).reshape(5, 2), "numbers": torch.arange(5.0)[:, None]}
    return Table(inputs, torch.tensor([0, 1, 0, 1, 1]), {"ids": (9, 10)})


def test_a_batch_holds_the_rows_asked_for_in_their_order(table: Table) -> None:
    batch = table.take(torch.tensor([3, 0, 3]))
    assert batch.inputs["ids"].tolist() == [[6, 7], [0, 1], [6, 7]]
    assert batch.inputs["numbers"].shape == (3, 1)
    assert batch.labels is not None
    assert batch.labels.tolist() == [1, 0, 1]


def test_a_slice_of_rows_is_a_batch_without_a_copy(table: Table) -> None:
    batch = table.take(slice(1, 3))
    assert batch.inputs["numbers"].tolist() == [[1.0], [2.0]]
    assert batch.inputs["numbers"].data_ptr() == table.inputs["numbers"][1:].data_ptr()


def test_a_batch_of_a_host_has_no_labels() -> None:
    assert Table({"x": torch.ones(2, 1)}).take(slice(0, 1)).labels is None


def test_a_table_on_another_device_is_the_same_table(table: Table) -> None:
    there = table.to(torch.device("meta"))
    assert (there.num_rows, there.sizes) == (table.num_rows, table.sizes)
    assert {t.device.type for t in there.inputs.values()} == {"meta"}


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        ({"x": torch.ones(2, 1), "y": torch.ones(3, 1)}, None),
        ({"x": torch.ones(2, 1)}, torch.ones(3)),
        ({}, None),
    ],
)
def test_columns_of_unequal_length_make_no_table(
    inputs: dict[str, torch.Tensor], labels: torch.Tensor | None
) -> None:
    with pytest.raises(DataError, match="one number of rows for all its columns"):
        Table(inputs, labels)
