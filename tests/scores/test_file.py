"""The scores file: written completely or not at all; read with every value checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.errors import ConfigError, DataError
from celu.metrics.names import Output
from celu.scores.file import ScoreWriter, read_scores
from celu.scores.layout import COLUMNS, FORMAT
from scores.samples import binary, ids, multiclass, regression, write_scores

HOSTS = pa.dictionary(pa.int32(), pa.string())
METADATA = {"celu.format": FORMAT, "celu.model": "joint", "celu.output": "binary"}


def table(num_rows: int = 6, metadata: dict[str, str] | None = None, **columns: Any) -> Any:
    """A valid table, with other columns in place of its own."""
    made = {
        "id": pa.array(ids(num_rows), pa.string()),
        "score": pa.array(np.linspace(0, 1, num_rows, dtype=np.float64)),
        "hosts": pa.array(["bank"] * num_rows).cast(HOSTS),
        "fallback": pa.array([False] * num_rows, pa.bool_()),
        **columns,
    }
    shown = {name: column for name, column in made.items() if column is not None}
    return pa.table(shown).replace_schema_metadata({**METADATA, **(metadata or {})})


def written(tmp_path: Path, what: Any) -> Path:
    pq.write_table(what, tmp_path / "scores.parquet")
    return tmp_path / "scores.parquet"


@pytest.mark.parametrize(
    ("output", "sample"),
    [("binary", binary), ("multiclass", multiclass), ("regression", regression)],
)
def test_what_is_written_is_read(output: Output, sample: Any, tmp_path: Path) -> None:
    scores, _ = sample()
    fallback = np.arange(len(scores)) % 3 == 0
    path = write_scores(tmp_path / "s.parquet", scores, output=output, fallback=fallback)
    read = read_scores(path)
    assert (read.model, read.output, len(read)) == ("joint", output, len(scores))
    assert np.array_equal(read.scores, scores) and read.scores.dtype == np.float64
    assert np.array_equal(read.fallback, fallback)
    assert read.ids.to_pylist() == ids(len(scores))
    assert read.hosts.to_pylist() == ["" if flag else "bank,shop" for flag in fallback]
    file = pq.ParquetFile(path)
    assert file.metadata.num_row_groups == -(-len(scores) // 700)
    assert file.schema_arrow.metadata[b"celu.format"] == b"celu-scores-1"


def test_a_table_of_the_documented_columns_is_read(tmp_path: Path) -> None:
    assert len(read_scores(written(tmp_path, table()))) == 6


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = write_scores(tmp_path / "s.parquet", np.array([0.5], np.float64))
    before = path.read_bytes()
    with pytest.raises(RuntimeError), ScoreWriter(path, model="m", output="binary") as file:
        file.write(["a"], np.array([0.1]), [""], [False])
        raise RuntimeError
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_ids_that_repeat_in_another_batch_are_refused_and_not_published(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="expected each id once, got 1 more rows than ids"),
        ScoreWriter(tmp_path / "s.parquet", model="m", output="binary") as file,
    ):
        file.write(["a", "b"], np.array([0.1, 0.2]), ["", ""], [False, False])
        file.write(["b"], np.array([0.1]), [""], [False])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_an_error_of_the_settings(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="cannot be written"),
        ScoreWriter(tmp_path / "nowhere" / "s.parquet", model="m", output="binary"),
    ):
        pass


@pytest.mark.parametrize(
    ("scores", "hosts", "problem"),
    [
        ([0.1, np.nan], ["", ""], "NaN or Inf in 1 rows"),
        ([0.1, 1.5], ["", ""], "below 0 or above 1 in 1 rows"),
        ([[0.1, 0.2]], ["", ""], "expected scores of shape"),
        ([0.1, 0.2], [""], "expected scores of shape"),
        ([0.1, 0.2], ["", None], "column 'hosts': expected a value in every row, got 1 nulls"),
    ],
)
def test_a_writer_refuses_what_a_reader_would(
    scores: Any, hosts: Any, problem: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(DataError, match=problem),
        ScoreWriter(tmp_path / "s.parquet", model="m", output="binary") as file,
    ):
        file.write(["a", "b"], np.array(scores), hosts, [False, False])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("output", "num_classes", "model"),
    [("binary", 2, "m"), ("multiclass", None, "m"), ("multiclass", 1, "m"), ("binary", None, "")],
)
def test_a_writer_needs_a_name_and_the_classes_of_a_multiclass_model(
    output: Output, num_classes: int | None, model: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError):
        ScoreWriter(tmp_path / "s", model=model, output=output, num_classes=num_classes)


LISTS = pa.list_(pa.float64(), 2)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (table(metadata={"celu.format": "other-1"}), "expected a scores file"),
        (table(metadata={"celu.output": "ranking"}), "celu.output to be one of binary"),
        (table(metadata={"celu.model": ""}), "expected celu.model"),
        (table(score=None), "expected one column 'score'"),
        (table(id=pa.array(range(6))), "column 'id': expected string, got int64"),
        (
            table(hosts=pa.array(["a"] * 6)),
            "column 'hosts': expected dictionary<string>, got string",
        ),
        (table(fallback=pa.array([0] * 6)), "column 'fallback': expected bool, got int64"),
        (
            table(score=pa.array([0.5] * 6, pa.float32())),
            "column 'score': expected float64, got float",
        ),
        (
            table(metadata={"celu.output": "multiclass"}),
            "column 'score': expected fixed_size_list<float64, K>",
        ),
        (table(id=pa.array([*ids(5), None])), "column 'id': expected a value in every row"),
        (table(id=pa.array([*ids(5), "person-00000"])), "expected each id once, got 1 more"),
        (table(score=pa.array([np.inf] * 6, pa.float64())), "NaN or Inf in 6 rows"),
        (table(score=pa.array([-0.1] * 6, pa.float64())), "below 0 or above 1 in 6 rows"),
        (table(num_rows=0), "expected rows, got none"),
        (
            table(score=pa.array([[0.4, 0.4]] * 6, LISTS), metadata={"celu.output": "multiclass"}),
            "probabilities that do not sum to 1 in 6 rows",
        ),
        (
            table(score=pa.array([[0.4, None]] * 6, LISTS), metadata={"celu.output": "multiclass"}),
            "expected probabilities, got nulls",
        ),
    ],
)
def test_a_reader_refuses_other_columns_types_and_values(
    made: Any, problem: str, tmp_path: Path
) -> None:
    path = written(tmp_path, made)
    with pytest.raises(DataError, match=problem) as caught:
        read_scores(path)
    assert str(path) in str(caught.value) and "person" not in str(caught.value)


def test_a_missing_or_damaged_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a file, got none"):
        read_scores(tmp_path / "s.parquet")
    with pytest.raises(DataError, match="expected a file, got a folder"):
        read_scores(tmp_path)
    path = written(tmp_path, table())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="expected a readable file"):
        read_scores(path)


def test_a_damaged_page_is_noticed(tmp_path: Path) -> None:
    path = write_scores(tmp_path / "s.parquet", binary(500, digits=7)[0])
    data = bytearray(path.read_bytes())
    data[1500] ^= 255
    path.write_bytes(data)
    with pytest.raises(DataError):
        read_scores(path)


def test_a_small_file_that_declares_gigabytes_of_ids_is_refused(tmp_path: Path) -> None:
    long = pa.DictionaryArray.from_arrays(
        pa.array([0] * 6000, pa.int32()), pa.array(["x" * 50_000])
    )
    rows = table(6000, id=long.cast(pa.string()))
    path = written(tmp_path, rows)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match="expected at most 268,435,456 bytes"):
        read_scores(path)


@pytest.mark.parametrize("num_classes", [None, 5000])
def test_a_small_file_with_more_rows_than_it_can_have_ids_for_is_refused(
    num_classes: int | None, tmp_path: Path
) -> None:
    num_rows = 3_000_000 if num_classes is None else 20_000
    score: Any = pa.repeat(pa.scalar(1 / 5000, pa.float64()), num_rows * (num_classes or 1))
    if num_classes is not None:
        score = pa.FixedSizeListArray.from_arrays(score, num_classes)
    text = pa.repeat("", num_rows)
    columns = [text, score, text.cast(HOSTS), pa.repeat(False, num_rows)]
    made = pa.table(dict(zip(COLUMNS, columns, strict=True)))
    output = "binary" if num_classes is None else "multiclass"
    path = written(tmp_path, made.replace_schema_metadata({**METADATA, "celu.output": output}))
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match="expected rows with different ids"):
        read_scores(path)


def test_a_row_group_that_declares_far_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    num_rows = 20_000_000
    text = pa.repeat("", num_rows)
    columns = [text, pa.repeat(pa.scalar(0, pa.float64()), num_rows), text.cast(HOSTS)]
    columns.append(pa.repeat(False, num_rows))
    rows = pa.table(dict(zip(COLUMNS, columns, strict=True)))
    path = tmp_path / "s.parquet"
    pq.write_table(
        rows.replace_schema_metadata(METADATA),
        path,
        row_group_size=num_rows,
        use_dictionary=["hosts"],
        compression="zstd",
    )
    with pytest.raises(DataError, match="more than 1000 times its size in the file"):
        read_scores(path)
