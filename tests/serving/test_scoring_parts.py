"""The work folder of a prediction: resumed from any point, discarded if anything changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from celu.errors import ConfigError
from celu.scores.file import read_scores
from celu.serving.predict_session import Scored
from celu.serving.rows import ChunkPlan, Section
from celu.serving.scoring_parts import WORK_FILE, ScoringParts

PLAN = ChunkPlan(
    (Section("train", True, 25), Section("test", True, 8), Section("test", False, 7)), 4
)
WORK = {"contract": {"model": "m"}, "rows": {"guest": "a" * 64}}
MODEL = "0123456789abcdef"


def open_parts(out: Path, **fields: Any) -> ScoringParts:
    defaults: dict[str, Any] = {"model": MODEL, "output": "binary", "hosts": "b,a"}
    return ScoringParts(out, **{**defaults, "part_rows": 12, **fields})


def scored(number: int) -> Scored:
    (piece,) = PLAN.pieces(number, number + 1)
    rows = range(piece.start, piece.stop)
    ids = pa.array([f"{piece.section.part}-{piece.section.is_aligned}-{row}" for row in rows])
    scores = torch.tensor([(number + row / 100) / 100 for row in rows], dtype=torch.float64)
    return Scored(number, ids, scores, not piece.section.is_aligned)


def score(parts: ScoringParts, work: dict[str, Any] = WORK, stop: int | None = None) -> int:
    """Score from the first chunk that is missing to before `stop`; returns the first."""
    first = parts.begin(work, PLAN)
    for number in range(first, PLAN.num_chunks if stop is None else stop):
        parts.add(scored(number))
    return first


@pytest.fixture
def complete(tmp_path: Path) -> pa.Table:
    with open_parts(tmp_path / "expected.parquet") as parts:
        assert score(parts) == 0
        parts.finish(None)
    table = pq.read_table(tmp_path / "expected.parquet")
    assert table.num_rows == 40 and table["fallback"].to_pylist().count(True) == 7
    assert set(table["hosts"].to_pylist()) == {"b,a", ""}
    return table


def test_a_prediction_killed_after_any_chunk_ends_with_the_same_file(
    tmp_path: Path, complete: pa.Table
) -> None:
    firsts = set()
    for stop in range(PLAN.num_chunks + 1):
        out = tmp_path / f"{stop}.parquet"
        with open_parts(out) as parts:
            score(parts, stop=stop)  # what is not in a part is lost
        with open_parts(out) as parts:
            firsts.add(score(parts))
            parts.finish(None)
        assert pq.read_table(out).equals(complete)
        assert out.read_bytes() == (tmp_path / "expected.parquet").read_bytes()
        assert sorted(path.name for path in tmp_path.glob(f".{stop}*")) == []
    assert len(firsts) == 4  # one for each number of complete parts


def test_a_prediction_killed_while_it_writes_the_file_ends_with_the_same_file(
    tmp_path: Path, complete: pa.Table
) -> None:
    out = tmp_path / "scores.parquet"
    with open_parts(out) as parts:
        score(parts)
    (parts.folder / "scores.parquet").write_bytes(b"PAR1 incomplete")
    (parts.folder / ".scores.parquet.7.partial").write_bytes(b"PAR1")
    (parts.folder / f"{WORK_FILE}.partial").write_bytes(b"{")
    with open_parts(out) as parts:
        score(parts)
        parts.finish(None)
    assert pq.read_table(out).equals(complete)
    assert not parts.folder.exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"contract": {"model": "other"}, "rows": {"guest": "a" * 64}},
        {"contract": {"model": "m"}, "rows": {"guest": "b" * 64}},
        {"contract": {"model": "m"}, "rows": {}},
        {},
    ],
)
def test_the_work_of_other_rows_or_another_contract_is_discarded(
    tmp_path: Path, complete: pa.Table, changed: dict[str, Any]
) -> None:
    out = tmp_path / "scores.parquet"
    with open_parts(out) as parts:
        score(parts, changed, stop=9)
        assert len(list(parts.folder.glob("part-*"))) == 2
    with open_parts(out) as parts:
        assert parts.begin(WORK, PLAN) == 0
        assert not list(parts.folder.glob("part-*"))
        score(parts)
        parts.finish(None)
    assert pq.read_table(out).equals(complete)


def other_model(path: Path) -> None:
    parts = ScoringParts(path.parent / "x", model="f" * 16, output="binary", hosts="", part_rows=1)
    parts.folder = path.parent
    parts._buffered = [scored(number) for number in range(3, 6)]
    parts._write_part()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_name("part-000000003-000000005.parquet")),
        lambda path: path.rename(path.with_name("part-000000003-999999999.parquet")),
        lambda path: path.rename(path.with_name("part-000000003-000000003.parquet")),
        other_model,
    ],
)
def test_a_damaged_part_and_those_after_it_are_scored_again(
    tmp_path: Path, complete: pa.Table, change: Callable[[Path], object]
) -> None:
    out = tmp_path / "scores.parquet"
    with open_parts(out) as parts:
        score(parts)
        assert parts.next_chunk == 10
    change(parts.folder / "part-000000003-000000006.parquet")
    with open_parts(out) as parts:
        assert score(parts) == 3
        parts.finish(None)
    assert pq.read_table(out).equals(complete)


def test_no_flipped_byte_of_a_part_reaches_the_file(tmp_path: Path, complete: pa.Table) -> None:
    out = tmp_path / "scores.parquet"
    with open_parts(out) as parts:
        score(parts)
    original = tmp_path / "original"
    parts.folder.rename(original)
    name = "part-000000003-000000006.parquet"
    content = (original / name).read_bytes()
    firsts = set()
    for at in range(0, len(content), 29):
        shutil.copytree(original, parts.folder)
        flipped = bytearray(content)
        flipped[at] ^= 0x55
        (parts.folder / name).write_bytes(flipped)
        with open_parts(out) as parts:
            firsts.add(score(parts))
            parts.finish(None)
        assert pq.read_table(out).equals(complete), at
    assert 3 in firsts


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff"])
def test_a_damaged_record_of_the_work_discards_it(tmp_path: Path, text: bytes) -> None:
    out = tmp_path / "scores.parquet"
    with open_parts(out) as parts:
        score(parts)
    (parts.folder / WORK_FILE).write_bytes(text)
    with open_parts(out) as parts:
        assert parts.begin(WORK, PLAN) == 0
        assert json.loads((parts.folder / WORK_FILE).read_text()) == WORK


def test_two_processes_cannot_write_the_same_scores(tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    busy = "another process is writing it"
    with open_parts(out), pytest.raises(ConfigError, match=busy), open_parts(out):
        pass
    with open_parts(out):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    parts = open_parts(tmp_path / "file" / "scores.parquet")
    with pytest.raises(ConfigError, match=r"scores\.parquet: cannot be written"), parts:
        pass


def test_a_part_ends_before_its_scores_take_much_memory(tmp_path: Path) -> None:
    plan = ChunkPlan((Section("test", True, 3),), 1)
    out = tmp_path / "scores.parquet"
    with open_parts(out, output="multiclass", part_rows=100) as parts:
        parts.begin(WORK, plan)
        big = torch.full((1, 9_000_000), 1 / 9_000_000, dtype=torch.float64)
        with pytest.raises(ConfigError, match="num_classes"):  # beyond what a file may have
            parts.add(Scored(0, pa.array(["a"]), big, False))


def test_multiclass_scores_are_resumed_too(tmp_path: Path) -> None:
    plan = ChunkPlan((Section("test", True, 3),), 1)
    rows = torch.tensor([[0.25, 0.75, 0.0]] * 3, dtype=torch.float64)
    out = tmp_path / "scores.parquet"
    with open_parts(out, output="multiclass", part_rows=2) as parts:
        parts.begin(WORK, plan)
        for number in range(2):
            parts.add(Scored(number, pa.array([str(number)]), rows[:1], False))
    with open_parts(out, output="multiclass", part_rows=2) as parts:
        assert parts.begin(WORK, plan) == 2
        parts.add(Scored(2, pa.array(["2"]), rows[:1], True))
        parts.finish(3)
    read = read_scores(out)
    assert read.scores.tolist() == rows.tolist()
    assert read.fallback.tolist() == [False, False, True]
