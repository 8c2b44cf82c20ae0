"""Rows read once and in order from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.data.row_stream import RowStream, check_unique, fingerprint
from celu.data.store import Store, StoreWriter, open_store, with_ids
from celu.errors import DataError
from stores import write_store


def make_store(path: Path, rows: int = 50) -> Store:
    columns = {
        "x": np.linspace(-1, 1, rows).astype(np.float32),
        "y": np.arange(rows).astype(np.float32),
        "c": (np.arange(rows) % 5).astype(np.int32),
    }
    return write_store(path, columns, {"c": 5})


def stream(store: Store, numbers: Any = None, *, ids: bool = True) -> RowStream:
    inputs = {"numbers": ["y", "x"], "ids": ["c"]}
    counts = store.schema.rows
    if numbers is None:
        return RowStream(store, inputs, counts, None, ids=ids)
    chosen = np.array(numbers, np.int64)
    return RowStream(
        store, inputs, {"train": len(chosen), "test": 0}, lambda part, a, b: chosen[a:b], ids=ids
    )


def rows_of(stream: RowStream, *, aligned: bool, start: int = 0) -> list[int]:
    """The row numbers of the training rows, which are the values of column y."""
    blocks = list(stream.blocks("train", aligned=aligned, start=start))
    return [int(y) for block in blocks for y in block.inputs["numbers"][:, 0]]


@pytest.mark.parametrize("numbers", [[], [0], [49], [3, 4, 7, 30, 48], list(range(50)), [0, 1, 2]])
def test_aligned_and_other_rows_are_complete_from_every_start(
    tmp_path: Path, numbers: list[int]
) -> None:
    rows = stream(make_store(tmp_path / "store"), numbers)
    others = [row for row in range(50) if row not in numbers]
    for start in range(51):
        assert rows_of(rows, aligned=True, start=start) == numbers[start:]
        assert rows_of(rows, aligned=False, start=start) == others[start:]


def test_without_an_alignment_every_row_is_aligned(tmp_path: Path) -> None:
    rows = stream(make_store(tmp_path / "store"))
    assert rows_of(rows, aligned=True, start=7) == list(range(7, 50))
    assert rows_of(rows, aligned=False) == []


def test_earlier_row_groups_are_not_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    table = pq.read_table(store.file("train"))
    pq.write_table(table, store.file("train"), row_group_size=8, compression="none")
    content = bytearray(store.file("train").read_bytes())
    content[4:400] = bytes(396)  # the first row group is unreadable
    store.file("train").write_bytes(content)
    rows = stream(open_store(store.path))
    assert rows_of(rows, aligned=True, start=41) == list(range(41, 50))
    with pytest.raises(DataError):
        rows_of(rows, aligned=True)


def change(store: Store, column: str, values: Any) -> Store:
    table = pq.read_table(store.file("train"))
    at = table.schema.get_field_index(column)
    array = pa.array(values, table.schema.field(at).type)
    pq.write_table(table.set_column(at, table.schema.field(at), array), store.file("train"))
    return open_store(store.path)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("x", None, "column 'x': expected no nulls, got others in 1 rows"),
        ("x", float("nan"), "column 'x': expected finite numbers"),
        ("y", float("inf"), "column 'y': expected finite numbers"),
        ("c", 5, "column 'c': expected codes below the declared size"),
        ("c", -1, "column 'c': expected codes below the declared size"),
        ("id", None, "column 'id': expected an id in every row"),
        ("tag", None, "column 'tag': expected a tag in every row"),
    ],
)
def test_a_value_that_no_model_can_use_is_refused_by_its_column(
    tmp_path: Path, column: str, value: Any, message: str
) -> None:
    store = make_store(tmp_path / "store")
    values = pq.read_table(store.file("train"))[column].to_pylist()
    values[17] = value
    changed = stream(change(store, column, values))
    with pytest.raises(DataError, match=message):
        rows_of(changed, aligned=True)


def test_the_commitments_are_those_of_all_tags(tmp_path: Path) -> None:
    from celu.data.tags import commitment

    store = make_store(tmp_path / "store")
    expected = {part: commitment(store.tags(part)) for part in ("train", "test")}
    assert stream(store).commitments() == expected
    some = stream(store, [1, 5, 9]).commitments()["train"]
    assert some == commitment(store.tags("train")[[1, 5, 9]])


def test_a_repeated_tag_is_found_in_any_order(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    check_unique(store)
    tags = sorted(pq.read_table(store.file("train"))["tag"].to_pylist())
    check_unique(change(store, "tag", tags))
    for repeated in ([tags[0], *tags[:-1]], [tags[3], *tags[1:]]):
        with pytest.raises(DataError, match="expected each id once, got 1 repeats"):
            check_unique(change(store, "tag", repeated))


def test_a_store_that_changes_has_another_fingerprint(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    before = fingerprint(store)
    assert fingerprint(open_store(store.path)) == before
    values = pq.read_table(store.file("train"))["x"].to_pylist()
    assert fingerprint(change(store, "x", [-value for value in values])) != before


def test_reading_a_store_holds_few_row_groups_at_a_time(tmp_path: Path) -> None:
    group, groups = 4000, 50
    store = make_store(tmp_path / "store")
    random = np.random.default_rng(1)
    parts = []
    for number in range(groups):
        names = [f"{number}-{row}" for row in range(group)]
        columns = {name: random.normal(size=group).astype(np.float32) for name in ("x", "y")}
        table = pa.table({**columns, "c": np.zeros(group, np.int32)})
        parts.append(with_ids(table, names, store.schema.split))
    with StoreWriter(tmp_path / "large", store.schema) as writer:
        for table in parts:
            writer.write("train", table)
    group_bytes = parts[0].nbytes
    del parts, table
    large = stream(open_store(tmp_path / "large"))
    before, peak, num_rows = pa.total_allocated_bytes(), 0, 0
    for block in large.blocks("train", aligned=True):
        num_rows += len(block)
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert num_rows == group * groups
    assert peak < 8 * group_bytes
