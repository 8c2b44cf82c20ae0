"""Stores from raw files: values, order, new rows, and interrupted runs."""

from __future__ import annotations

import gzip
import math
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celu.config.schema import Category, Number, RawSchema, Source, Split, read_store_schema
from celu.data.tags import held_out, make_tags
from celu.errors import ConfigError, DataError
from celu.prepare import delimited, parquet, passes, spill
from celu.prepare.encoders import categories, statistics
from celu.prepare.pipeline import Report, Target, prepare, prepare_like

ROWS = 200
SPLIT = Split(seed=3, test=0.25)
SCHEMA = RawSchema(
    id="id",
    label="y",
    split=SPLIT,
    numbers={
        "plain": Number(),
        "log": Number(log=True, missing=0.0),
        "scaled": Number(missing=-2.5, standardise=True),
    },
    categories={"hash": Category(buckets=7), "word": Category(vocabulary=3, min_count=2)},
)


def rows(num_rows: int = ROWS, first: int = 0, seed: int = 5) -> list[dict[str, str]]:
    random = np.random.default_rng(seed)
    made = []
    for row in range(first, first + num_rows):
        made.append(
            {
                "id": f"user-{row}",
                "y": str(row % 2),
                "plain": repr(float(random.normal())),
                "log": "" if row % 5 == 0 else str(int(random.integers(-3, 50))),
                "scaled": "" if row % 7 == 0 else repr(float(random.normal(50, 3))),
                "hash": "" if row % 11 == 0 else f"h{int(random.integers(30))}",
                "word": "" if row % 9 == 0 else f"w{int(random.integers(6))}",
            }
        )
    return made


def text(some: Sequence[dict[str, str]], delimiter: str = ",", names: bool = True) -> str:
    lines = [delimiter.join(row.values()) for row in some]
    return "\n".join([*([delimiter.join(some[0])] if names else []), *lines]) + "\n"


def csv(folder: Path, some: Sequence[dict[str, str]], name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text(some))
    return path


def make(source: Path, declared: RawSchema, out: Path) -> Report:
    [report] = prepare([source], [Target(declared, out)])
    return report


def read(store: Path, part: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = pq.read_table(store / f"{part}.parquet").to_pylist()
    return made


def both(store: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for part in ("train", "test") for row in read(store, part)}


def contents(store: Path) -> tuple[pa.Table, pa.Table, str]:
    train, test = (pq.read_table(store / f"{part}.parquet") for part in ("train", "test"))
    return train, test, (store / "schema.json").read_text()


def in_test(row_id: str, split: Split = SPLIT) -> bool:
    return bool(held_out(make_tags([row_id], split.seed), split.test)[0])


# Values: a reference in plain Python, row by row.


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


# Fitting.


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


# Order, split, and formats.


def test_rows_are_in_the_order_of_their_tags(tmp_path: Path) -> None:
    make(csv(tmp_path, rows()), SCHEMA, tmp_path / "store")
    for part in ("train", "test"):
        stored = read(tmp_path / "store", part)
        assert [row["tag"] for row in stored] == sorted(row["tag"] for row in stored)
        tags = make_tags([row["id"] for row in stored], SPLIT.seed)
        assert [row["tag"] for row in stored] == [bytes(tag) for tag in tags]
        assert (held_out(tags, SPLIT.test) == (part == "test")).all()


def test_two_parties_have_the_same_test_rows_and_the_same_order(tmp_path: Path) -> None:
    host = RawSchema(id="id", split=SPLIT, numbers={"plain": Number()})
    make(csv(tmp_path, rows(150), "a.csv"), SCHEMA, tmp_path / "guest")
    shuffled = rows(150, first=70)[::-1]
    make(csv(tmp_path, shuffled, "b.csv"), host, tmp_path / "host")
    for part in ("train", "test"):
        mine = [row["id"] for row in read(tmp_path / "guest", part)]
        theirs = [row["id"] for row in read(tmp_path / "host", part)]
        shared = set(mine) & set(theirs)
        assert [i for i in mine if i in shared] == [i for i in theirs if i in shared]
        others = {
            row["id"] for row in read(tmp_path / "host", "test" if part == "train" else "train")
        }
        assert not others & set(mine)
    assert len(both(tmp_path / "guest").keys() & both(tmp_path / "host").keys()) == 80


@contextmanager
def small_blocks(block: int, joined: int, bucket: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "BLOCK_BYTES", block)
        patch.setattr(delimited, "BLOCKS_JOINED", joined)
        patch.setattr(parquet, "PARQUET_ROWS", block // 50)
        patch.setattr(spill, "BUCKET_BYTES", bucket)
        patch.setattr(statistics, "_WINDOW", 64)
        yield


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_a_store_does_not_depend_on_blocks_and_buckets(tmp_path: Path, name: str) -> None:
    path = csv(tmp_path, rows())
    if name == "rows.parquet":
        path = as_parquet(tmp_path, rows())
    made = []
    for number, (block, joined, bucket) in enumerate(
        [(1 << 22, 8, 1 << 25), (400, 1, 700), (1000, 3, 5000), (1 << 22, 1, 100)]
    ):
        with small_blocks(block, joined, bucket):
            make(path, SCHEMA, tmp_path / str(number))
        made.append(contents(tmp_path / str(number)))
    assert all(store == made[0] for store in made)


def as_parquet(folder: Path, raws: Sequence[dict[str, str]], name: str = "rows.parquet") -> Path:
    columns: dict[str, Any] = {key: [row[key] or None for row in raws] for key in raws[0]}
    for key in ("plain", "log", "scaled"):
        columns[key] = pa.array([None if v is None else float(v) for v in columns[key]])
    columns["y"] = pa.array([int(v) for v in columns["y"]], pa.int8())
    columns["hash"] = pa.array(columns["hash"]).dictionary_encode()
    pq.write_table(pa.table(columns), folder / name, row_group_size=70)
    return folder / name


def test_all_formats_of_the_same_rows_make_the_same_store(tmp_path: Path) -> None:
    raws = rows()
    names = list(raws[0])
    zipped = tmp_path / "rows.tsv.gz"
    zipped.write_bytes(gzip.compress(text(raws, "\t").encode()))
    plain = tmp_path / "rows.txt"
    plain.write_text(text(raws, "\t", names=False))
    na = tmp_path / "na.csv"
    na.write_text(text([{k: v or "NA" for k, v in row.items()} for row in raws]))
    halves = [csv(tmp_path, raws[:90], "1.csv"), csv(tmp_path, raws[90:], "2.csv")]
    ways: list[tuple[list[Path], Source]] = [
        ([csv(tmp_path, raws)], Source()),
        ([zipped], Source()),
        ([plain], Source(names=names)),
        ([na], Source(missing=["NA"])),
        ([as_parquet(tmp_path, raws)], Source()),
        (halves, Source()),
        (halves[::-1], Source()),
        ([csv(tmp_path, raws, "odd.data")], Source(format="csv")),
    ]
    made = []
    for number, (sources, source) in enumerate(ways):
        declared = SCHEMA.model_copy(update={"source": source})
        prepare(sources, [Target(declared, tmp_path / str(number))])
        made.append(contents(tmp_path / str(number))[:2])
    for train, test in made[1:]:
        # A mean over another order of rows may differ in its last bit.
        assert train.drop(["scaled"]) == made[0][0].drop(["scaled"])
        assert test.drop(["scaled"]) == made[0][1].drop(["scaled"])
        np.testing.assert_allclose(train["scaled"], made[0][0]["scaled"], rtol=1e-6)


def test_text_in_parquet_is_read_like_a_text_file(tmp_path: Path) -> None:
    raws = rows()
    path = tmp_path / "text.parquet"
    pq.write_table(pa.table({key: [row[key] for row in raws] for key in raws[0]}), path)
    make(path, SCHEMA, tmp_path / "a")
    make(csv(tmp_path, raws), SCHEMA, tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_integers_and_booleans_become_categories_as_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    numbers = pa.array([7, 8, None, 7], pa.int16())
    pq.write_table(
        pa.table({"id": [1, 2, 3, 4], "n": numbers, "b": [True, False, None, True]}), path
    )
    categories = {"n": Category(vocabulary=9), "b": Category(vocabulary=9)}
    make(path, RawSchema(id="id", split=Split(test=0.0), categories=categories), tmp_path / "store")
    schema = read_store_schema(tmp_path / "store")
    assert schema.categories["n"].values == ["7", "8"]
    assert schema.categories["b"].values == ["true", "false"]
    stored = both(tmp_path / "store")
    assert [stored[i]["n"] for i in "1234"] == [2, 3, 0, 2]


def test_row_numbers_continue_across_files(tmp_path: Path) -> None:
    declared = RawSchema(id="#row", split=SPLIT, numbers={"plain": Number()})
    sources = [csv(tmp_path, rows(30), "1.csv"), csv(tmp_path, rows(30, first=30), "2.csv")]
    prepare(sources, [Target(declared, tmp_path / "store")])
    assert both(tmp_path / "store").keys() == {str(row) for row in range(60)}


def test_one_scan_makes_the_same_stores_as_two(tmp_path: Path) -> None:
    path = csv(tmp_path, rows())
    host = RawSchema(id="id", split=SPLIT, categories={"word": Category(vocabulary=4)})
    made = prepare([path], [Target(SCHEMA, tmp_path / "a"), Target(host, tmp_path / "b")])
    assert [report.out for report in made] == [tmp_path / "a", tmp_path / "b"]
    make(path, SCHEMA, tmp_path / "c")
    make(path, host, tmp_path / "d")
    assert contents(tmp_path / "a") == contents(tmp_path / "c")
    assert contents(tmp_path / "b") == contents(tmp_path / "d")


def test_stores_of_one_scan_must_agree_on_rows_and_kinds_of_columns(tmp_path: Path) -> None:
    path = csv(tmp_path, rows())
    other = SCHEMA.model_copy(update={"split": Split(seed=9)})
    with pytest.raises(ConfigError, match="the same source, id and split"):
        prepare([path], [Target(SCHEMA, tmp_path / "a"), Target(other, tmp_path / "b")])
    twice = RawSchema(id="id", split=SPLIT, categories={"log": Category(buckets=5)})
    with pytest.raises(ConfigError, match=r"column 'log': .* number and category"):
        prepare([path], [Target(SCHEMA, tmp_path / "a"), Target(twice, tmp_path / "b")])
    with pytest.raises(ConfigError, match="expected raw files, got none"):
        prepare([], [Target(SCHEMA, tmp_path / "a")])


# The files.


def test_pages_carry_checksums_and_row_groups_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "ROW_GROUP", 40)
    make(csv(tmp_path, rows()), SCHEMA, tmp_path / "store")
    path = tmp_path / "store" / "train.parquet"
    about = pq.read_metadata(path)
    assert all(20 <= about.row_group(i).num_rows <= 40 for i in range(about.num_row_groups))
    data = bytearray(path.read_bytes())
    data[about.row_group(0).column(2).data_page_offset + 60] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match=r"(?i)crc|checksum"):
        pq.read_table(path, page_checksum_verification=True)


def test_both_parts_exist_if_there_are_no_test_rows(tmp_path: Path) -> None:
    declared = SCHEMA.model_copy(update={"split": Split(test=0.0)})
    report = make(csv(tmp_path, rows()), declared, tmp_path / "store")
    assert report.rows == {"train": ROWS, "test": 0}
    assert pq.read_table(tmp_path / "store" / "test.parquet").num_rows == 0
    assert sorted(p.name for p in (tmp_path / "store").iterdir()) == [
        "schema.json",
        "test.parquet",
        "train.parquet",
    ]


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


# New rows for an existing store.


def test_the_same_rows_are_encoded_the_same_by_the_fitted_encoders(tmp_path: Path) -> None:
    path = csv(tmp_path, rows())
    make(path, SCHEMA, tmp_path / "store")
    report = prepare_like([path], tmp_path / "store", tmp_path / "new")
    assert report.rows == {"train": 0, "test": ROWS}
    assert both(tmp_path / "new") == both(tmp_path / "store")
    again = prepare_like([path], tmp_path / "new", tmp_path / "newer")
    assert contents(tmp_path / "newer") == contents(tmp_path / "new")
    assert again.unseen == report.unseen
    digests = {read_store_schema(tmp_path / name).digest() for name in ("store", "new", "newer")}
    assert len(digests) == 1


def test_unseen_values_are_counted_and_labels_may_be_absent(tmp_path: Path) -> None:
    make(csv(tmp_path, rows()), SCHEMA, tmp_path / "store")
    known = read_store_schema(tmp_path / "store").categories["word"].values
    assert known is not None
    raws = [row | {"word": known[0]} for row in rows(20, first=1000)]
    for number, word in enumerate(["new", "newer", "new"]):
        raws[number]["word"] = word
    unlabelled = [{key: value for key, value in row.items() if key != "y"} for row in raws]
    path = csv(tmp_path, unlabelled, "new.csv")
    report = prepare_like([path], tmp_path / "store", tmp_path / "new")
    assert report.unseen == {"word": 3}
    assert "label" not in pq.read_schema(tmp_path / "new" / "test.parquet").names
    digests = {read_store_schema(tmp_path / name).digest() for name in ("store", "new")}
    assert len(digests) == 1


def test_new_labels_must_have_the_type_of_the_store(tmp_path: Path) -> None:
    make(csv(tmp_path, rows()), SCHEMA, tmp_path / "store")
    path = csv(tmp_path, [row | {"y": "0.5"} for row in rows(7)], "new.csv")
    with pytest.raises(DataError, match=r"column 'y': expected integers, .* got 7"):
        prepare_like([path], tmp_path / "store", tmp_path / "new")
    one = csv(tmp_path, [row | {"y": "1"} for row in rows(7)], "one.csv")
    assert prepare_like([one], tmp_path / "store", tmp_path / "one").rows["test"] == 7


def test_prepare_like_needs_a_store(tmp_path: Path) -> None:
    path = csv(tmp_path, rows())
    with pytest.raises(DataError, match="expected a store's schema"):
        prepare_like([path], tmp_path, tmp_path / "new")


# Existing stores and interrupted runs.


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_a_store_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = csv(tmp_path, rows())
    out = tmp_path / "store"
    make(path, SCHEMA, out)
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=r"has a schema\.json; to replace it, use --force"):
        make(path, SCHEMA, out)
    assert tree(tmp_path) == before
    other = SCHEMA.model_copy(update={"split": Split(seed=77, test=0.5)})
    prepare([path], [Target(other, out)], replace=True)
    assert read_store_schema(out).split.seed == 77
    assert tree(tmp_path).keys() == before.keys()


@pytest.mark.parametrize("there", ["file", "folder", "empty folder"])
def test_a_path_that_is_not_a_store_is_never_replaced(tmp_path: Path, there: str) -> None:
    path = csv(tmp_path, rows())
    out = tmp_path / "store"
    if there == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        if there == "folder":
            (out / "mine").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=r"already exists and has no schema\.json"):
        prepare([path], [Target(SCHEMA, out)], replace=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("phase", ["reading", "writing"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_leaves_the_existing_files(
    tmp_path: Path, phase: str, error: type[BaseException]
) -> None:
    path = csv(tmp_path, rows())
    make(path, SCHEMA, tmp_path / "old")
    before = tree(tmp_path)

    def stop(now: str, done: int, total: int) -> None:
        assert 0 < done <= total
        if now == phase:
            raise error

    targets = [Target(SCHEMA, tmp_path / "old"), Target(SCHEMA, tmp_path / "deep" / "new")]
    with small_blocks(1000, 1, 2000), pytest.raises(error):
        prepare([path], targets, stop, replace=True)
    assert tree(tmp_path) == before


def test_two_runs_cannot_write_the_same_store_at_once(tmp_path: Path) -> None:
    path = csv(tmp_path, rows())
    out = tmp_path / "store"
    refused = []

    def second(now: str, done: int, total: int) -> None:
        if not refused:
            with pytest.raises(ConfigError, match="another process is writing it") as error:
                make(path, SCHEMA, out)
            refused.append(error)

    prepare([path], [Target(SCHEMA, out)], second)
    assert refused
    assert len(both(out)) == ROWS
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.csv", "store"]


def test_a_replacement_killed_between_its_renames_is_rolled_back(tmp_path: Path) -> None:
    path = csv(tmp_path, rows())
    make(path, SCHEMA, tmp_path / "store")
    before = tree(tmp_path)
    (tmp_path / "store").rename(tmp_path / ".store.old")
    with pytest.raises(ConfigError, match=r"already exists and has a schema\.json"):
        make(path, SCHEMA, tmp_path / "store")
    assert tree(tmp_path) == before


KILLED = """
import sys, time
from pathlib import Path
from celu.config.schema import RawSchema
from celu.prepare import delimited, spill
from celu.prepare.pipeline import Target, prepare

delimited.BLOCK_BYTES, delimited.BLOCKS_JOINED, spill.BUCKET_BYTES = 1000, 1, 2000
phase, source, out, declared = sys.argv[1:]

def hang(now, done, total):
    if now == phase and done > total // 2:
        print("half way", flush=True)
        time.sleep(600)

prepare([Path(source)], [Target(RawSchema.model_validate_json(declared), Path(out))], hang)
"""


@pytest.mark.parametrize("phase", ["reading", "writing"])
def test_a_killed_run_leaves_no_store_and_the_next_one_succeeds(tmp_path: Path, phase: str) -> None:
    path = csv(tmp_path, rows())
    out = tmp_path / "store"
    arguments = [phase, str(path), str(out), SCHEMA.model_dump_json()]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half way\n"
        assert (tmp_path / ".store.partial").is_dir()
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    assert (tmp_path / ".store.partial").is_dir()
    make(path, SCHEMA, out)
    make(path, SCHEMA, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fresh", "rows.csv", "store"]


def test_a_full_disk_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = csv(tmp_path, rows())

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spill.Spill, "add", full)
    with pytest.raises(DataError, match="store: cannot be written: No space left"):
        make(path, SCHEMA, tmp_path / "store")
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    path = csv(tmp_path, rows())
    seen: list[tuple[str, int, int]] = []
    with small_blocks(1000, 1, 2000):
        prepare([path], [Target(SCHEMA, tmp_path / "store")], lambda *event: seen.append(event))
    reading = [event for event in seen if event[0] == "reading"]
    assert len(reading) > 5
    assert reading[-1][1] == reading[-1][2] == path.stat().st_size
    assert seen[-1][1] == seen[-1][2]
