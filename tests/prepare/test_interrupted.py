"""Existing stores, interrupted runs and progress."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from celu.config.schema import Split, read_store_schema
from celu.errors import ConfigError, DataError
from celu.prepare import spill
from celu.prepare.pipeline import Target, prepare
from prepare.samples import (
    ROWS,
    SCHEMA,
    both,
    contents,
    csv,
    make,
    rows,
    small_blocks,
)


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
delimited.PIECE_BYTES = 1000
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
