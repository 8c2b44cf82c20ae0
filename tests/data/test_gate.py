"""The gate: the errors of broken stores, warnings and statistics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.config.columns import FittedCategory
from celu.data.gate import check_store
from celu.data.store import Store, open_store
from celu.errors import DataError
from data.samples import (
    ROWS,
    SECRET,
    SIZES,
    columns,
    edit_schema,
    put,
    rewrite,
    rows_of,
    with_column,
)
from stores import write_store


def misname(store: Store) -> None:
    """Make a column's name invalid UTF-8, as flipped bits can do."""
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
    "a name that is not UTF-8": (misname, "train.parquet: expected a readable Parquet"),
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
