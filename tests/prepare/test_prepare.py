"""Stores from raw files: order, split, formats, and new rows for an existing store."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.config.columns import Category, Number
from celu.config.schema import RawSchema, Source, Split, read_raw_schema, read_store_schema
from celu.data.tags import held_out, make_tags
from celu.errors import ConfigError, DataError
from celu.prepare import delimited, passes, spill
from celu.prepare.pipeline import Target, prepare, prepare_like
from celu.threads import DaemonThreads
from prepare.samples import (
    ROWS,
    SCHEMA,
    SPLIT,
    as_parquet,
    both,
    contents,
    csv,
    make,
    read,
    rows,
    small_blocks,
    text,
)


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


def files(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.iterdir())}


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_any_number_of_threads_makes_the_same_files(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = csv(tmp_path, rows())
    if name == "rows.parquet":
        path = as_parquet(tmp_path, rows())
    used = pools(monkeypatch)
    made = []
    for threads in (1, 2, 7):
        used.clear()
        with small_blocks(400, 2, 700):
            prepare([path], [Target(SCHEMA, tmp_path / str(threads))], threads=threads)
        made.append(files(tmp_path / str(threads)))
        assert used["celu-encode"] == used["celu-sort"] == threads
    assert made[0] == made[1] == made[2]


def test_threads_are_by_default_the_cpus_that_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = pools(monkeypatch)
    for cpus, threads in (({1, 5, 6}, 3), (set(range(64)), 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cpus=cpus: cpus)
        make(csv(tmp_path, rows()), SCHEMA, tmp_path / str(threads))
        assert used["celu-encode"] == threads


def pools(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The threads of each pool that a later `prepare` starts, by its name."""
    used: dict[str, int] = {}

    def start(max_threads: int, name: str) -> DaemonThreads:
        used[name] = max_threads
        return DaemonThreads(max_threads, name)

    monkeypatch.setattr(passes, "DaemonThreads", start)
    return used


def test_buckets_that_are_divided_in_two_steps_make_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = csv(tmp_path, rows())
    with small_blocks(400, 2, 1 << 20):
        make(path, SCHEMA, tmp_path / "at once")
    monkeypatch.setattr(spill, "MAX_AT_ONCE", 4)
    monkeypatch.setattr(spill, "_GROUP_BYTES", 1000)
    with small_blocks(400, 2, 150):
        assert spill.buckets_for(path.stat().st_size) > 40
        make(path, SCHEMA, tmp_path / "in steps")
    assert contents(tmp_path / "at once") == contents(tmp_path / "in steps")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["at once", "in steps", "rows.csv"]


def test_more_rows_make_more_buckets_and_none_is_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "MAX_AT_ONCE", 4)
    largest = {}
    whole = spill.Spill.read
    for count in (500, 4000):
        read_rows: list[int] = []

        def read(self: spill.Spill, bucket: int, seen: list[int] = read_rows) -> object:
            batch = whole(self, bucket)
            seen.append(0 if batch is None else batch.num_rows)
            return batch

        with small_blocks(2000, 2, 2500), monkeypatch.context() as patch:
            patch.setattr(spill.Spill, "read", read)
            path = csv(tmp_path, rows(count), f"{count}.csv")
            make(path, SCHEMA, tmp_path / str(count))
        assert sum(read_rows) == count
        largest[count] = max(read_rows)
    assert largest[4000] < 2 * largest[500]


def test_a_file_with_newlines_in_quotes_is_read_as_a_whole(tmp_path: Path) -> None:
    raws = [row | {"word": f'"w{i % 4}\nline, two"'} for i, row in enumerate(rows())]
    path = csv(tmp_path, raws)
    make(path, SCHEMA, tmp_path / "large blocks")
    for size in (97, 500, 1501):  # which cut within quotes and between them
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delimited, "PIECE_BYTES", size)
            make(path, SCHEMA, tmp_path / str(size))
        assert contents(tmp_path / str(size)) == contents(tmp_path / "large blocks")
    assert len(both(tmp_path / "large blocks")) == ROWS


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


def test_values_that_are_missing_for_the_first_time_are_left_out_or_trained_on(
    tmp_path: Path,
) -> None:
    lines = [f"r{n},{n},2021-03-{1 + n % 28:02}" for n in range(ROWS)]
    path = tmp_path / "old.csv"
    path.write_text("\n".join(["id,x,day", *lines, ""]))
    (tmp_path / "schema.toml").write_text(
        'id = "id"\nsplit = { test = 0.2 }\n[numbers]\nx = {}\n[dates.day]\nparts = ["weekday"]\n'
    )
    make(path, read_raw_schema(tmp_path / "schema.toml"), tmp_path / "store")
    new = tmp_path / "new.csv"
    new.write_text("id,x,day\na,1,2021-03-04\nb,2,\nc,,2021-03-05\n")
    advice = "leave those rows out, or declare a replacement as missing, prepare all rows and train"
    with pytest.raises(DataError, match=advice) as caught:
        prepare_like([new], tmp_path / "store", tmp_path / "new")
    assert str(caught.value).count(advice) == 2
    with pytest.raises(DataError, match=r"without; declare a replacement as missing"):
        make(new, read_raw_schema(tmp_path / "schema.toml"), tmp_path / "again")


def test_prepare_like_needs_a_store(tmp_path: Path) -> None:
    path = csv(tmp_path, rows())
    with pytest.raises(DataError, match="expected a store's schema"):
        prepare_like([path], tmp_path, tmp_path / "new")
