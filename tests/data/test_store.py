"""Stores: the datasets that they open, and the files behind them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from celu.data import memory_map
from celu.data.memory_map import open_datasets
from celu.data.store import Store, open_store
from celu.errors import DataError
from data.samples import (
    ROWS,
    SIZES,
    columns,
    edit_schema,
    rewrite,
    rows_of,
    with_column,
)
from stores import write_store


def test_rows_are_read_as_they_were_written_in_the_requested_columns(store: Store) -> None:
    assert store.inputs() == {"ids": ["c", "d"], "numbers": ["x", "y"]}
    rows = open_datasets(store, {"a": ["d"], "b": ["y", "x"], "c": ["c", "d"]}, label=True)
    expected = columns()
    assert rows.train.inputs["a"][:, 0].tolist() == expected["d"].tolist()
    assert rows.train.inputs["b"].tolist() == np.stack([expected["y"], expected["x"]], 1).tolist()
    assert rows.train.sizes == {"a": (5,), "c": (7, 5)}
    assert rows.train.labels is not None
    assert rows.train.labels.tolist() == expected["label"].tolist()
    assert rows.train.commitment != rows.test.commitment
    assert rows.warnings == []


def test_a_host_reads_no_label_and_a_guest_may_read_only_the_label(store: Store) -> None:
    assert open_datasets(store, {"x": ["x"]}, label=False).train.labels is None
    alone = open_datasets(store, {}, label=True).train
    assert (alone.num_rows, alone.inputs) == (ROWS, {})


def test_a_store_opens_its_own_datasets_with_all_features_and_its_label(store: Store) -> None:
    opened = open_store(str(store.path)).datasets()
    expected = rows_of(store)
    assert opened.train.commitment == expected.train.commitment
    assert opened.test.labels is not None
    for name, values in expected.train.inputs.items():
        assert opened.train.inputs[name].equal(values)
    assert (opened.schema, opened.warnings) == (expected.schema, expected.warnings)
    some = store.datasets({"b": ["y"]}, label=False).train
    assert (list(some.inputs), some.labels) == (["b"], None)


def test_the_datasets_of_a_store_without_labels_have_none(tmp_path: Path) -> None:
    features = {name: values for name, values in columns().items() if name != "label"}
    store = write_store(tmp_path / "store", features, SIZES)
    assert store.datasets().train.labels is None


def test_mapped_files_are_written_once_and_again_after_any_change(store: Store) -> None:
    folder = store.path / "columns"
    first = rows_of(store)
    (made,) = folder.iterdir()
    before = (made / "columns.json").stat().st_mtime_ns
    assert rows_of(store).train.inputs["ids"].equal(first.train.inputs["ids"])
    assert (made / "columns.json").stat().st_mtime_ns == before
    (made / "train.ids.bin").unlink()
    (made / "train.ids.bin").write_bytes(b"cut")  # detected by its size, and written again
    assert rows_of(store).train.inputs["ids"].equal(first.train.inputs["ids"])
    open_datasets(store, {"x": ["x"]}, label=True)
    assert len(list(folder.iterdir())) == 2
    store = write_store(store.path, columns(x=np.ones(ROWS, np.float32)), SIZES)
    assert rows_of(store).train.inputs["numbers"][:, 0].tolist() == [1.0] * ROWS


def test_a_store_that_cannot_be_written_to_is_refused_by_folder(store: Store) -> None:
    (store.path / "columns").write_text("in the way")
    with pytest.raises(DataError, match=r"columns: expected a folder that can be written, for a"):
        open_datasets(store)


def test_writing_to_mapped_tensors_does_not_change_the_files(store: Store) -> None:
    rows_of(store).train.inputs["numbers"].zero_()
    assert rows_of(store).train.inputs["numbers"].abs().sum() > 0


def test_an_input_of_mixed_kinds_or_unknown_columns_is_refused(store: Store) -> None:
    with pytest.raises(
        DataError, match="'both': expected only categories, only numbers or only bags"
    ):
        open_datasets(store, {"both": ["c", "x"]}, label=True)
    with pytest.raises(DataError, match=r"'ids': expected features of the store .*got 'z'"):
        open_datasets(store, {"ids": ["z"]}, label=True)
    host = write_store(store.path.parent / "host", {"x": columns()["x"]})
    with pytest.raises(DataError, match="expected labels"):
        open_datasets(host, host.inputs(), label=True)


def test_a_failed_write_leaves_the_existing_store(store: Store) -> None:
    def fail() -> None:
        write_store(store.path, columns(), SIZES, ids={"train": ["a"], "test": ["b"]})

    with pytest.raises(pa.ArrowInvalid):
        fail()
    assert rows_of(open_store(store.path)).train.num_rows == ROWS
    assert [p.name for p in store.path.parent.iterdir()] == ["store"]


def test_class_labels_are_int64(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", columns(), SIZES)
    rewrite(store, with_column("label", lambda v: [int(x) for x in v], pa.int64()))
    rewrite(store, with_column("label", lambda v: [int(x) for x in v], pa.int64()), "test")
    edit_schema(store, label_type="class")
    labels = rows_of(open_store(store.path)).train.labels
    assert labels is not None
    assert labels.dtype == torch.int64


def test_a_file_that_declares_a_thousand_times_its_size_is_refused_before_it_is_read(
    store: Store,
) -> None:
    table = pq.read_table(store.file("train"))
    padded = pa.array(["a" * ((100 << 20) // ROWS)] * ROWS)
    table = table.set_column(table.schema.get_field_index("id"), "id", padded)
    pq.write_table(
        table, store.file("train"), compression="zstd", use_dictionary=False, data_page_size=1 << 30
    )
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    previous = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(DataError, match=r"column 'id': row group 0 declares .* 1000 times"):
            open_datasets(open_store(store.path))
    finally:
        pa.set_memory_pool(previous)
    assert pool.max_memory() < 16 << 20


@pytest.mark.parametrize("change", [-1, 1])
def test_more_or_fewer_rows_than_the_schema_are_refused_while_they_are_read(
    store: Store, change: int
) -> None:
    rows = {**store.schema.rows, "train": ROWS + change}
    other = Store(store.path, store.schema.model_copy(update={"rows": rows}))
    with pytest.raises(DataError, match=rf"expected {ROWS + change} rows, as in the schema, got"):
        open_datasets(other)
    with pytest.raises(DataError, match=rf"expected {ROWS + change} rows, as in the schema, got"):
        other.tags("train")


def test_a_mapped_file_of_another_size_is_written_again(store: Store) -> None:
    expected = rows_of(store).train.inputs["numbers"].clone()
    (folder,) = (store.path / "columns").iterdir()
    facts = json.loads((folder / "columns.json").read_text())
    file = folder / "train.numbers.bin"
    short = file.read_bytes()[:8]
    file.unlink()  # it may still be mapped
    file.write_bytes(short)
    facts["files"][file.name] = 8  # the list agrees with the file, and both are wrong
    (folder / "columns.json").write_text(json.dumps(facts))
    assert torch.equal(rows_of(store).train.inputs["numbers"], expected)


def test_files_that_another_process_wrote_first_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = write_store(tmp_path / "store", {"x": np.ones(9, np.float32)})
    first: list[int] = []

    def sync(path: Path) -> None:  # before the last step of the one, the other does all of it
        if not first:
            first.append(0)
            open_datasets(made)
            (folder,) = [p for p in (made.path / "columns").iterdir() if p.name[0] != "."]
            first[0] = folder.stat().st_ino

    monkeypatch.setattr(memory_map, "sync", sync)
    assert open_datasets(made).train.num_rows == 9
    (left,) = (made.path / "columns").iterdir()
    assert left.stat().st_ino == first[0]
