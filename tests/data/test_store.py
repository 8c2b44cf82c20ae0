"""Stores: reading them, and the errors of broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from celu.config.schema import FittedCategory
from celu.data.alignment import read_alignment, write_alignment
from celu.data.gate import check_store
from celu.data.memory_map import StoreDatasets, open_datasets
from celu.data.store import Store, open_store
from celu.errors import AlignmentError, CeluError, DataError
from stores import ids_of, write_store

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


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(tmp_path / "store", columns(), SIZES)


def rows_of(store: Store, **options: Any) -> StoreDatasets:
    return open_datasets(store, store.inputs(), label=True, **options)


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


def test_datasets_take_an_alignment_by_its_path(store: Store, tmp_path: Path) -> None:
    wanted = {"train": np.array([5, 199, 0]), "test": np.array([3])}
    path = tmp_path / "alignment"
    alignment = write_alignment(path, store, wanted, peers={}, common={})
    by_path = store.datasets(alignment=str(path)).train
    assert by_path.commitment == store.datasets(alignment=alignment).train.commitment
    assert by_path.num_rows == 3


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


def test_writing_to_mapped_tensors_does_not_change_the_files(store: Store) -> None:
    rows_of(store).train.inputs["numbers"].zero_()
    assert rows_of(store).train.inputs["numbers"].abs().sum() > 0


def test_an_alignment_selects_and_orders_the_rows(store: Store, tmp_path: Path) -> None:
    wanted = {"train": np.array([5, 199, 0, 17]), "test": np.array([3])}
    path = tmp_path / "alignment"
    write_alignment(path, store, wanted, peers={"host": 9}, common={"host": 5})
    rows = rows_of(store, alignment=read_alignment(path, store))
    expected = columns()
    assert rows.train.inputs["numbers"][:, 0].tolist() == expected["x"][wanted["train"]].tolist()
    assert rows.train.inputs["ids"][:, 0].tolist() == expected["c"][wanted["train"]].tolist()
    assert rows.test.num_rows == 1
    assert rows.train.tags is not None
    assert np.array_equal(rows.train.tags, store.tags("train")[wanted["train"]])


def test_an_alignment_is_refused_after_the_store_changed(store: Store, tmp_path: Path) -> None:
    wanted = {"train": np.arange(50), "test": np.arange(9)}
    path = tmp_path / "alignment"
    write_alignment(path, store, wanted, peers={}, common={})
    ids = {part: ids_of(part, ROWS) for part in ("train", "test")}
    for change in ("swap two", "reverse", "replace one"):
        names = list(ids["train"])
        if change == "swap two":
            names[3], names[4] = names[4], names[3]
        elif change == "reverse":
            names.reverse()
        else:
            names[7] = "other"
        other = write_store(store.path, columns(), SIZES, ids={**ids, "train": names})
        with pytest.raises(AlignmentError, match=r"train rows changed since .* .celu align"):
            rows_of(other, alignment=read_alignment(path, other))
    shorter = {name: values[:-1] for name, values in columns().items()}
    other = write_store(store.path, shorter, SIZES)
    with pytest.raises(AlignmentError, match="made for a store of"):
        read_alignment(path, other)


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


def misname(store: Store) -> None:
    """Make a column's name invalid UTF-8, as flipped bits may."""
    path = store.path / "train.parquet"
    path.write_bytes(path.read_bytes().replace(b"label", b"\xf4abel"))


def flip_bits(store: Store, at: float, part: str = "train") -> None:
    """Flip bits in the middle of a file."""
    file = store.path / f"{part}.parquet"
    data = bytearray(file.read_bytes())
    for i in range(16):
        data[int(len(data) * at) + i] ^= 0x55
    file.write_bytes(data)


def cut(store: Store, name: str, size: int) -> None:
    (store.path / name).write_bytes((store.path / name).read_bytes()[:size])


F32, I32 = pa.float32(), pa.int32()
NULL_TAG = lambda values: [None, *values[1:]]  # noqa: E731
BROKEN: dict[str, tuple[Callable[[Store], None], str]] = {
    "no schema": (lambda s: (s.path / "schema.json").unlink(), "expected a store's schema, got"),
    "empty schema": (lambda s: cut(s, "schema.json", 0), "expected a store's schema"),
    "schema of one part": (
        lambda s: edit_schema(s, rows={"train": 200}),
        "rows: expected",
    ),
    "cut schema": (lambda s: cut(s, "schema.json", 100), "expected a store's schema"),
    "schema of another kind": (lambda s: edit_schema(s, format="celu-store-9"), "format"),
    "schema with a stray key": (lambda s: edit_schema(s, colour="red"), "colour: expected no such"),
    "schema with rows of text": (lambda s: edit_schema(s, rows={"train": "many"}), "rows"),
    "no training file": (lambda s: (s.path / "train.parquet").unlink(), "train.parquet: expected"),
    "no test file": (lambda s: (s.path / "test.parquet").unlink(), "test.parquet: expected"),
    "empty file": (lambda s: cut(s, "train.parquet", 0), "train.parquet: expected a readable"),
    "cut file": (lambda s: cut(s, "train.parquet", 900), "train.parquet: expected a readable"),
    "cut by a byte": (
        lambda s: cut(s, "test.parquet", (s.path / "test.parquet").stat().st_size - 1),
        "test.parquet: expected a readable",
    ),
    "no parquet at all": (
        lambda s: (s.path / "train.parquet").write_text("id,x\n1,2\n"),
        "train.parquet: expected a readable",
    ),
    "flipped bits": (lambda s: flip_bits(s, 0.3), "train.parquet: expected a readable Parquet"),
    "flipped bits later": (
        lambda s: flip_bits(s, 0.5),
        "train.parquet: expected a readable Parquet",
    ),
    "a name that is no text": (misname, "train.parquet: expected a readable Parquet"),
    "a column gone": (
        lambda s: rewrite(s, lambda t: t.drop_columns(["x"])),
        "train.parquet: expected a column 'x'",
    ),
    "no tags": (
        lambda s: rewrite(s, lambda t: t.drop_columns(["tag"]), "test"),
        "test.parquet: expected a column 'tag'",
    ),
    "no label": (lambda s: rewrite(s, lambda t: t.drop_columns(["label"])), "column 'label'"),
    "numbers as text": (
        lambda s: rewrite(s, with_column("x", lambda v: list(map(str, v)))),
        "column 'x': expected float",
    ),
    "numbers as doubles": (
        lambda s: rewrite(s, with_column("x", list, pa.float64())),
        "column 'x': expected float, as in the schema, got double",
    ),
    "codes as floats": (
        lambda s: rewrite(s, with_column("c", list, F32)),
        "column 'c': expected int32",
    ),
    "rows gone": (
        lambda s: rewrite(s, lambda t: t.slice(1)),
        "expected 200 rows, as in the schema, got 199",
    ),
    "rows too many": (
        lambda s: rewrite(s, lambda t: pa.concat_tables([t, t.slice(0, 1)])),
        "expected 200 rows, as in the schema, got 201",
    ),
    "a row twice": (
        lambda s: rewrite(s, lambda t: pa.concat_tables([t.slice(1), t.slice(5, 1)])),
        "column 'id': expected each id once, got 1 repeats",
    ),
    "a row in both parts": (
        lambda s: rewrite(
            s,
            lambda t: pa.concat_tables(
                [t.slice(1), pq.read_table(s.path / "test.parquet").slice(0, 1)]
            ),
        ),
        "column 'id': expected each id once, got 1 repeats",
    ),
    "null ids": (
        lambda s: rewrite(s, with_column("id", lambda v: [None, None, *v[2:]])),
        "train: column 'id': expected an id in every row, got 2 nulls",
    ),
    "null tags": (
        lambda s: rewrite(s, with_column("tag", NULL_TAG, pa.binary(16))),
        "column 'tag': expected a tag in every row, got 1 nulls",
    ),
    "a null number": (
        lambda s: rewrite(s, with_column("x", put(4, None), F32)),
        "train: column 'x': expected no nulls, got 1",
    ),
    "a null code in the test part": (
        lambda s: rewrite(s, with_column("d", put(4, None), I32), "test"),
        "test: column 'd': expected no nulls, got 1",
    ),
    "all null": (
        lambda s: rewrite(s, with_column("y", lambda v: [None] * len(v), F32)),
        "train: column 'y': all 200 values are null",
    ),
    "a null label": (
        lambda s: rewrite(s, with_column("label", put(4, None), F32)),
        "train: column 'label': expected no nulls, got 1",
    ),
    "NaN": (
        lambda s: rewrite(s, with_column("x", put(4, float("nan")), F32)),
        "train: column 'x': expected finite numbers, got others in 1 rows",
    ),
    "Inf": (
        lambda s: rewrite(s, with_column("x", put(4, float("-inf")), F32), "test"),
        "test: column 'x': expected finite numbers, got others in 1 rows",
    ),
    "NaN as a label": (
        lambda s: rewrite(s, with_column("label", put(4, float("nan")), F32)),
        "train: column 'label': expected finite numbers",
    ),
    "a code beyond its size": (
        lambda s: rewrite(s, with_column("c", put(4, int(SECRET)), I32)),
        "train: column 'c': expected codes from 0 to below the declared size, got others in 1",
    ),
    "a negative code": (
        lambda s: rewrite(s, with_column("c", put(4, -1), I32)),
        "train: column 'c': expected codes from 0",
    ),
    "one class": (
        lambda s: rewrite(s, with_column("label", lambda v: [SECRET] * len(v), F32)),
        "train: column 'label': all 200 rows have the same label",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_error_of_a_broken_store_gives_file_column_and_count_but_no_value(
    store: Store, name: str
) -> None:
    damage, message = BROKEN[name]
    damage(store)
    with pytest.raises(DataError) as error:
        rows_of(open_store(store.path))
    assert message in str(error.value)
    assert str(store.path) in str(error.value) or "column" in str(error.value)
    assert "87654" not in str(error.value)
    mapped = store.path / "columns"
    assert not mapped.exists() or not list(mapped.iterdir()), "no partial files remain"


def test_several_errors_are_reported_together(store: Store) -> None:
    rewrite(store, with_column("x", put(4, None), F32))
    rewrite(store, with_column("c", put(4, 99), I32))
    with pytest.raises(DataError, match=r"column 'x'.*column 'c'.*celu inspect"):
        rows_of(open_store(store.path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.full(ROWS, 3.5, np.float32)}, "train: column 'x': all 200 values are the same"),
        ({"c": np.full(ROWS, 3, np.int32)}, "train: column 'c': all 200 values are the same"),
        ({"c": np.zeros(ROWS, np.int32)}, "train: column 'c': all 200 values are missing"),
    ],
)
def test_a_constant_or_empty_column_is_a_warning(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    store = write_store(tmp_path / "store", columns(**changes), SIZES)
    assert message in rows_of(store).warnings
    assert message in rows_of(store).warnings, "also when the mapped files exist already"


BROKEN_ALIGNMENTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent": (lambda p: (p / "alignment.json").unlink(), 'run "celu align" at all parties'),
    "cut": (lambda p: (p / "alignment.json").write_text("{"), "expected an alignment"),
    "of another kind": (lambda p: (p / "alignment.json").write_text("{}"), "expected an alignment"),
    "without a part": (
        lambda p: (p / "alignment.json").write_text(
            (p / "alignment.json").read_text().replace('"test": 9', '"train": 50')
        ),
        "rows: ",
    ),
    "an archive": (
        lambda p: (p / "train.npy").write_bytes(b"PK\x03\x04" + bytes(100)),
        "train.npy: expected row numbers",
    ),
    "a header cut": (
        lambda p: (p / "train.npy").write_bytes(
            (p / "train.npy").read_bytes().replace(b"(50,), ", b"((((((,")
        ),
        "train.npy: expected row numbers",
    ),
    "a claim": (
        lambda p: (p / "test.npy").write_bytes(
            (p / "test.npy").read_bytes().replace(b"(9,), }         ", b"(9999999999999),}")
        ),
        "test.npy: expected row numbers",
    ),
    "no rows": (lambda p: (p / "train.npy").unlink(), "train.npy: expected row numbers"),
    "no array": (lambda p: (p / "train.npy").write_bytes(b"x"), "train.npy: expected row numbers"),
    "empty file": (lambda p: (p / "test.npy").write_bytes(b""), "test.npy: expected row numbers"),
    "fewer": (lambda p: np.save(p / "train.npy", np.arange(49)), "expected 50 row numbers"),
    "floats": (
        lambda p: np.save(p / "train.npy", np.zeros(50)),
        "50 row numbers, got flo",
    ),
    "beyond": (
        lambda p: np.save(p / "train.npy", np.arange(190, 240)),
        "row numbers within the store",
    ),
    "negative": (
        lambda p: np.save(p / "train.npy", np.arange(-1, 49)),
        "row numbers within the store",
    ),
    "swapped": (lambda p: np.save(p / "train.npy", np.arange(50)[::-1].copy()), "changed since"),
    "objects": (
        lambda p: (p / "train.npy").write_bytes(
            b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (50,), }"
            + b" " * 60
            + b"\n"
        ),
        "train.npy: expected row numbers",
    ),
}


@pytest.mark.parametrize("name", BROKEN_ALIGNMENTS)
def test_a_broken_alignment_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    path = tmp_path / "alignment"
    rows = {"train": np.arange(50), "test": np.arange(9)}
    write_alignment(path, store, rows, peers={}, common={})
    damage, message = BROKEN_ALIGNMENTS[name]
    damage(path)
    with pytest.raises(CeluError) as error:
        rows_of(store, alignment=read_alignment(path, store))
    assert isinstance(error.value, DataError | AlignmentError)
    assert message in str(error.value)


def test_an_input_of_mixed_kinds_or_unknown_columns_is_refused(store: Store) -> None:
    with pytest.raises(DataError, match="'both': expected only categories or only numbers"):
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


def test_the_gate_computes_ranges_means_and_coverage(store: Store) -> None:
    facts = check_store(store).facts["train"]
    expected = columns()
    assert facts["x"].low == pytest.approx(float(expected["x"].min()))
    assert facts["x"].mean == pytest.approx(float(expected["x"].mean()), abs=1e-6)
    assert facts["label"].mean == pytest.approx(float(expected["label"].mean()))
    assert facts["c"].coverage == 1.0
    assert facts["d"].missing == int((expected["d"] == 0).sum())


def test_the_gate_counts_rows_with_unseen_values(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", columns(), SIZES)
    category = FittedCategory(vocabulary=5, values=["a", "b", "c", "d", "e"])
    schema = store.schema.model_copy(
        update={"categories": {**store.schema.categories, "c": category}}
    )
    facts = check_store(Store(store.path, schema)).facts["test"]["c"]
    assert facts.unseen == int((columns()["c"] == 1).sum())


def test_class_labels_are_int64(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", columns(), SIZES)
    rewrite(store, with_column("label", lambda v: [int(x) for x in v], pa.int64()))
    rewrite(store, with_column("label", lambda v: [int(x) for x in v], pa.int64()), "test")
    edit_schema(store, label_type="class")
    labels = rows_of(open_store(store.path)).train.labels
    assert labels is not None
    assert labels.dtype == torch.int64
