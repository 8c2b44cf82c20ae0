"""Scores and labels are joined by id; rows without a partner are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import celu
from celu.errors import ConfigError, DataError
from celu.scores.rows import rows_from_files
from scores.samples import binary, ids, write_labels, write_scores

SCORES, LABELS = binary(300)


def test_rows_are_joined_by_id_in_any_order(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(300)
    scores = write_scores(
        tmp_path / "s.parquet", SCORES[order], rows=[ids(300)[row] for row in order]
    )
    rows = rows_from_files(scores, write_labels(tmp_path / "y.parquet", LABELS))
    assert np.array_equal(rows.scores, SCORES[order]) and np.array_equal(rows.labels, LABELS[order])
    assert rows.counts.evaluated == 300


def test_rows_without_a_label_or_a_score_are_counted(tmp_path: Path) -> None:
    scores = write_scores(tmp_path / "s.parquet", SCORES[:250])
    labels = pa.array(LABELS, mask=np.arange(300) % 10 == 0)
    path = tmp_path / "y.parquet"
    pq.write_table(pa.table({"id": ids(300), "label": labels}).slice(100), path)
    counts = rows_from_files(scores, path).counts
    # Rows 0 to 249 are scored, 100 to 299 are in the labels file, each tenth without a label.
    assert (counts.evaluated, counts.without_label, counts.without_score) == (135, 115, 45)


def test_rows_that_one_of_two_models_scores_are_counted_once(tmp_path: Path) -> None:
    ours = write_scores(tmp_path / "s.parquet", SCORES[:200])
    theirs = write_scores(tmp_path / "t.parquet", SCORES[50:250], rows=ids(300)[50:250])
    rows = rows_from_files(ours, write_labels(tmp_path / "y.parquet", LABELS), against=theirs)
    assert (rows.counts.evaluated, rows.counts.not_in_both) == (150, 100)
    assert (rows.counts.without_label, rows.counts.without_score) == (0, 50)
    assert rows.against is not None and np.array_equal(rows.against, rows.scores)


def test_the_hosts_that_took_part_are_a_slice_of_the_scores_file(tmp_path: Path) -> None:
    flags = np.arange(300) % 3 == 0
    scores = write_scores(tmp_path / "s.parquet", SCORES, fallback=flags)
    labels = write_labels(tmp_path / "y.parquet", LABELS, city=np.full(300, "Oslo"))
    rows = rows_from_files(scores, labels, by=["hosts", "city"])
    assert list(rows.by) == ["hosts", "city"]
    hosts = rows.by["hosts"]
    named = [hosts.values[code] for code in hosts.codes]
    assert named == ["(none)" if flag else "bank,shop" for flag in flags]
    # Some rows have no label, and a labels file may have a column of the same name.
    labels = write_labels(tmp_path / "z.parquet", LABELS[:100])
    assert len(rows_from_files(scores, labels, by=["hosts"]).by["hosts"].codes) == 100
    labels = write_labels(tmp_path / "w.parquet", LABELS, hosts=np.full(300, "mine"))
    assert rows_from_files(scores, labels, by=["hosts"]).by["hosts"].values[0] == "mine"


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet"])
def test_labels_are_read_from_text_and_parquet(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"y.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"key": ids(300), "y": LABELS.astype(int)}), path)
    else:
        import gzip

        separator = "\t" if ending == "tsv" else ","
        lines = [
            f"{name}{separator}{label:.0f}" for name, label in zip(ids(300), LABELS, strict=True)
        ]
        data = "\n".join([f"key{separator}y", *lines, ""]).encode()
        path.write_bytes(gzip.compress(data) if ending == "csv.gz" else data)
    scores = write_scores(tmp_path / "s.parquet", SCORES)
    rows = rows_from_files(scores, path, id_column="key", label_column="y")
    assert np.array_equal(rows.labels, LABELS)


def test_integer_ids_of_a_labels_file_match_their_text(tmp_path: Path) -> None:
    scores = write_scores(tmp_path / "s.parquet", SCORES, rows=[str(row) for row in range(300)])
    path = tmp_path / "y.parquet"
    pq.write_table(pa.table({"id": range(300), "label": LABELS}), path)
    assert rows_from_files(scores, path).counts.evaluated == 300


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"id": [*ids(299), None]}, "column 'id': expected each id once, got 1 rows without one"),
        ({"id": [*ids(299), ids(1)[0]]}, "column 'id': expected each id once, got 1 repeated ids"),
        ({"label": LABELS * np.nan}, "column 'label': expected finite labels"),
        ({"label": LABELS * 7}, "column 'label': expected 0 or 1 for the output 'binary'"),
        ({"label": ["yes"] * 300}, "column 'label': expected numbers, got text in 300 rows"),
        ({"id": [f"other-{row}" for row in range(300)]}, "expected rows with a label"),
        ({"label": None}, "expected a column 'label'"),
    ],
)
def test_bad_labels_are_refused_without_quoting_an_id(
    columns: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    made = {"id": ids(300), "label": LABELS, **columns}
    path = tmp_path / "y.parquet"
    pq.write_table(
        pa.table({name: column for name, column in made.items() if column is not None}), path
    )
    with pytest.raises(DataError, match=problem) as caught:
        rows_from_files(write_scores(tmp_path / "s.parquet", SCORES), path)
    assert "person" not in str(caught.value) and "other-" not in str(caught.value)


def test_the_id_and_the_label_are_no_slices(tmp_path: Path) -> None:
    scores = write_scores(tmp_path / "s.parquet", SCORES)
    labels = write_labels(tmp_path / "y.parquet", LABELS)
    for by in (["id"], ["label"], ["city", "city"]):
        with pytest.raises(ConfigError, match="--by: expected columns other than"):
            rows_from_files(scores, labels, by=by)


def test_models_of_different_tasks_are_not_compared(tmp_path: Path) -> None:
    scores = write_scores(tmp_path / "s.parquet", SCORES)
    other = write_scores(tmp_path / "t.parquet", SCORES, output="regression")
    with pytest.raises(DataError, match="expected the output of"):
        rows_from_files(scores, write_labels(tmp_path / "y.parquet", LABELS), against=other)


def test_a_small_labels_file_with_more_rows_than_it_can_have_ids_for_is_refused(
    tmp_path: Path,
) -> None:
    num_rows = 3_000_000
    columns = {"id": pa.repeat("a", num_rows), "label": pa.repeat(1, num_rows)}
    pq.write_table(pa.table(columns), tmp_path / "y.parquet")
    with pytest.raises(DataError, match="expected rows with different ids"):
        rows_from_files(write_scores(tmp_path / "s.parquet", SCORES), tmp_path / "y.parquet")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"labels": LABELS[:200]}, r"scores: expected shape \[N\] with labels \[N\]"),
        ({"labels": LABELS * 3}, "labels: expected 0 or 1"),
        ({"scores": SCORES * 3}, "scores: expected probabilities, got below 0 or above 1"),
        ({"against": SCORES[:200]}, "against: expected shape"),
        ({"fallback": [True]}, "fallback: expected 300 values"),
        ({"by": {"city": ["x"]}}, r"by\['city'\]: expected 300 values"),
        ({"output": "multiclass"}, r"scores: expected shape \[N, K\]"),
        ({"labels": ["yes"] * 300}, "labels: expected an array of numbers, got <U3"),
        (
            {"scores": torch.zeros(300, requires_grad=True)},
            r"scores: expected an array of numbers, .*tensor.detach\(\).cpu\(\)",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments: dict[str, Any], problem: str) -> None:
    given = {"scores": SCORES, "labels": LABELS, "output": "binary", **arguments}
    with pytest.raises(DataError, match=problem):
        celu.evaluate(given.pop("scores"), given.pop("labels"), **given)
