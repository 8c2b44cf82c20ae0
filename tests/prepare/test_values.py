"""The values of a store: a reference in plain Python, and what encoders are fitted on."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celu.config.columns import Category, Number
from celu.config.schema import RawSchema, Split, read_store_schema
from celu.errors import DataError
from celu.prepare.encoders import categories, statistics
from prepare.samples import (
    ROWS,
    SCHEMA,
    SPLIT,
    both,
    csv,
    in_test,
    make,
    read,
    rows,
)


def filled_and_log(cell: str, number: Number) -> float:
    value = number.missing if cell == "" else float(cell)
    assert value is not None
    if number.log:
        return math.log(value + 1) if value > -1 else -1.0
    return value


def reference_numbers(cells: dict[str, str], number: Number, split: Split) -> dict[str, float]:
    values = {row: filled_and_log(cell, number) for row, cell in cells.items()}
    if not number.standardise:
        return values
    train_values = [value for row, value in values.items() if not in_test(row, split)]
    mean = math.fsum(train_values) / len(train_values)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in train_values) / len(train_values))
    return {row: (value - mean) / (deviation or 1.0) for row, value in values.items()}


def reference_hash(cell: str, buckets: int) -> int:
    if cell == "":
        return 0
    word = 0xCBF29CE484222325
    for byte in cell.encode():
        word = (word ^ byte) * 0x100000001B3 % 2**64
    word ^= word >> 33
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        word = word * factor % 2**64
        word ^= word >> 33
    return word % buckets + 1


def reference_codes(cells: dict[str, str], category: Category, split: Split) -> dict[str, int]:
    assert category.vocabulary is not None
    counts = Counter(cell for row, cell in cells.items() if cell and not in_test(row, split))
    enough = [value for value, count in counts.items() if count >= category.min_count]
    enough.sort(key=lambda value: (-counts[value], value))
    code = {value: number for number, value in enumerate(enough[: category.vocabulary], start=2)}
    return {row: 0 if cell == "" else code.get(cell, 1) for row, cell in cells.items()}


def test_every_value_equals_the_reference_in_plain_python(tmp_path: Path) -> None:
    raws = rows()
    report = make(csv(tmp_path, raws), SCHEMA, tmp_path / "store")
    stored = both(tmp_path / "store")
    assert len(stored) == ROWS
    cells = {name: {row["id"]: row[name] for row in raws} for name in raws[0]}
    for name, number in SCHEMA.numbers.items():
        expected = reference_numbers(cells[name], number, SPLIT)
        got = {row_id: row[name] for row_id, row in stored.items()}
        assert got == pytest.approx(expected, rel=1e-6, abs=1e-6)
    for row in raws:
        assert stored[row["id"]]["hash"] == reference_hash(row["hash"], 7)
        assert stored[row["id"]]["label"] == int(row["y"])
    words = reference_codes(cells["word"], SCHEMA.categories["word"], SPLIT)
    assert {row_id: row["word"] for row_id, row in stored.items()} == words
    assert report.rows["test"] == sum(map(in_test, stored))
    assert report.warnings == ()


cell_numbers = st.one_of(
    st.just(""),
    st.floats(-1e30, 1e30).map(repr),
    st.integers(-5, 5).map(str),
    st.sampled_from(["-1", "-1.0", "-0.9999", "0", "-0.0", "1e-30", "3.4e38"]),
)


@settings(max_examples=25)
@given(
    cells=st.lists(cell_numbers, min_size=8, max_size=30),
    log=st.booleans(),
    standardise=st.booleans(),
    missing=st.sampled_from([0.0, -1.0, 2.5]),
)
def test_any_numbers_equal_the_reference_in_plain_python(
    cells: list[str], log: bool, standardise: bool, missing: float
) -> None:
    number = Number(log=log, standardise=standardise, missing=missing)
    split = Split(seed=1, test=0.0)
    with TemporaryDirectory() as folder:
        path = csv(Path(folder), [{"id": str(i), "x": cell} for i, cell in enumerate(cells)])
        declared = RawSchema(id="id", split=split, numbers={"x": number})
        make(path, declared, Path(folder, "store"))
        got = {row["id"]: row["x"] for row in read(Path(folder, "store"), "train")}
    expected = reference_numbers({str(i): cell for i, cell in enumerate(cells)}, number, split)
    assert got == pytest.approx(expected, rel=1e-5, abs=1e-5)


plain_text = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='",'))


@settings(max_examples=25)
@given(
    cells=st.lists(st.one_of(plain_text, st.sampled_from("abc")), min_size=12, max_size=40),
    vocabulary=st.integers(1, 5),
    min_count=st.integers(1, 3),
    buckets=st.integers(1, 9),
)
def test_any_categories_equal_the_reference_in_plain_python(
    cells: list[str], vocabulary: int, min_count: int, buckets: int
) -> None:
    word = Category(vocabulary=vocabulary, min_count=min_count)
    categories = {"word": word, "hash": Category(buckets=buckets)}
    by_row = {str(row): cell for row, cell in enumerate(cells)}
    split = Split(seed=2, test=0.0)
    with TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        pq.write_table(pa.table({"id": list(by_row), "word": cells, "hash": cells}), path)
        declared = RawSchema(id="id", split=split, categories=categories)
        make(path, declared, Path(folder, "store"))
        stored = both(Path(folder, "store"))
    assert {i: row["word"] for i, row in stored.items()} == reference_codes(by_row, word, split)
    assert {i: row["hash"] for i, row in stored.items()} == {
        i: reference_hash(cell, buckets) for i, cell in by_row.items()
    }


@settings(max_examples=50)
@given(
    parts=st.lists(st.lists(st.floats(-1e6, 1e6), max_size=40), max_size=6),
    offset=st.sampled_from([0.0, 1e6]),
)
def test_moments_do_not_depend_on_how_the_values_are_divided(
    parts: list[list[float]], offset: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_WINDOW", 16)
        one, many = statistics.RunningMoments(), statistics.RunningMoments()
        values = [value + offset for part in parts for value in part]
        one.add(np.array(values))
        for part in parts:
            many.add(np.array(part, float) + offset)
        assert one.result() == many.result(), "to the last bit"
        if values:
            mean, deviation = one.result()
            assert mean == pytest.approx(np.mean(values), rel=1e-12, abs=1e-9)
            assert deviation == pytest.approx(float(np.std(values)) or 1.0, rel=1e-6, abs=1e-6)


def test_hashes_never_change(tmp_path: Path) -> None:
    """Stores and trained models depend on these codes: a change would break both."""
    path = csv(tmp_path, [{"id": str(i), "c": c} for i, c in enumerate(["a", "05db9164", "é", ""])])
    declared = RawSchema(
        id="id", split=Split(test=0.0), categories={"c": Category(buckets=100_000)}
    )
    make(path, declared, tmp_path / "store")
    codes = {row["id"]: row["c"] for row in read(tmp_path / "store", "train")}
    assert codes == {"0": GOLDEN[0], "1": GOLDEN[1], "2": GOLDEN[2], "3": 0}


GOLDEN = (28316, 89405, 82044)


def test_encoders_are_fitted_on_training_rows_only(tmp_path: Path) -> None:
    raws = rows()
    changed = [
        row | {"word": "new", "scaled": "1e9"} if in_test(row["id"]) else row for row in raws
    ]
    make(csv(tmp_path, raws, "a.csv"), SCHEMA, tmp_path / "a")
    make(csv(tmp_path, changed, "b.csv"), SCHEMA, tmp_path / "b")
    assert read_store_schema(tmp_path / "a") == read_store_schema(tmp_path / "b")
    assert read(tmp_path / "a", "train") == read(tmp_path / "b", "train")
    assert {row["word"] for row in read(tmp_path / "b", "test")} == {1}
    assert "new" not in (tmp_path / "b" / "schema.json").read_text()


def test_labels_are_classes_if_all_are_written_as_integers(tmp_path: Path) -> None:
    cases = [
        ("0", "1", "class"),
        ("0.0", "1", "number"),
        ("1e0", "2", "number"),
        ("-3", "12", "class"),
    ]
    for first, second, expected in cases:
        raws = [row | {"y": first if row["y"] == "0" else second} for row in rows()]
        out = tmp_path / f"{first}-{second}"
        make(csv(tmp_path, raws), SCHEMA, out)
        assert read_store_schema(out).label_type == expected
        kind = pa.int64() if expected == "class" else pa.float32()
        assert pq.read_schema(out / "train.parquet").field("label").type == kind
        assert {row["label"] for row in read(out, "train")} == {float(first), float(second)}


def test_a_host_has_no_label_and_a_guest_may_have_only_the_label(tmp_path: Path) -> None:
    path = csv(tmp_path, rows())
    host = RawSchema(id="id", split=SPLIT, categories={"hash": Category(buckets=3)})
    make(path, host, tmp_path / "host")
    make(path, RawSchema(id="id", label="y", split=SPLIT), tmp_path / "guest")
    assert pq.read_schema(tmp_path / "host" / "test.parquet").names == ["id", "tag", "hash"]
    assert pq.read_schema(tmp_path / "guest" / "test.parquet").names == ["id", "tag", "label"]


def test_warnings_name_the_column_and_never_a_value(tmp_path: Path) -> None:
    raws = [
        row
        | {
            "plain": "7731",
            "log": "",
            "word": f"w7731-{number}",
            "hash": "7731",
            "y": str(int(number < 4)),
            "scaled": "" if number % 100 else "7731",
        }
        for number, row in enumerate(rows())
    ]
    report = make(csv(tmp_path, raws), SCHEMA, tmp_path / "store")
    warnings = "\n".join(report.warnings)
    assert "column 'plain': all training rows have the same value" in warnings
    assert "column 'log': every value is missing in the training rows" in warnings
    assert "column 'hash': all training rows have the same value" in warnings
    assert "column 'word': no value occurs in 2 or more training rows" in warnings
    assert "column 'y': the rarest of its 2 classes has" in warnings
    assert "column 'scaled': 9" in warnings
    assert "7731" not in warnings
    assert len(report.warnings) == 6


def test_a_constant_column_is_scaled_to_zero(tmp_path: Path) -> None:
    raws = [row | {"scaled": "5"} for row in rows()]
    make(csv(tmp_path, raws), SCHEMA, tmp_path / "store")
    fitted = read_store_schema(tmp_path / "store").numbers["scaled"]
    assert (fitted.mean, fitted.deviation) == (5.0, 1.0)
    assert {row["scaled"] for row in read(tmp_path / "store", "train")} == {0.0}


def test_vocabularies_share_a_memory_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(categories.VocabularyBudget.__init__, "__defaults__", (100,))
    raws = [row | {"word": f"secret{number}"} for number, row in enumerate(rows())]
    with pytest.raises(DataError, match=r"column 'word': expected at most 100 .* buckets") as error:
        make(csv(tmp_path, raws), SCHEMA, tmp_path / "store")
    assert "secret" not in str(error.value)
    assert not (tmp_path / "store").exists()
