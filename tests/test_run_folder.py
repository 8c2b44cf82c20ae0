"""The run folder: new, resumed or refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.identity import RunIdentity
from celu.errors import ConfigError
from celu.events import TrainingResumed, TrainingStarted
from celu.record.run import RunRecord
from celu.run_folder import RunFolder


def events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]


def start_run(path: Path) -> None:
    """A run in which training started, and that can be resumed."""
    run = RunFolder(path, {})
    run.emit(TrainingStarted(num_rounds=9))
    (path / "run.json").write_text("{}")
    (path / "run.json").chmod(0o600)
    run.finish({"status": "PeerLost"})


def test_a_resumed_run_appends_to_its_events_and_counts_attempts(tmp_path: Path) -> None:
    start_run(tmp_path)
    again = RunFolder(tmp_path, {}, resume=True)
    again.emit(TrainingResumed(round=3, num_rounds=9))
    again.finish({"status": "done"})
    found = events(tmp_path)
    assert [e["event"] for e in found] == ["attempt", "started", "attempt", "resumed"]
    assert [e["number"] for e in found if e["event"] == "attempt"] == [1, 2]
    times = [float(str(e["t"])) for e in found]
    assert times == sorted(times)


def test_a_folder_in_which_training_never_started_can_be_used_again(tmp_path: Path) -> None:
    RunFolder(tmp_path, {}).finish({"status": "DataError"})
    RunFolder(tmp_path, {}).finish({"status": "done"})


def test_a_torn_last_event_is_cut_off(tmp_path: Path) -> None:
    start_run(tmp_path)
    whole = (tmp_path / "events.jsonl").read_bytes()
    for torn in (b'{"t": 1.5, "ev', b"\0\0\0\0", b"\xff"):
        (tmp_path / "events.jsonl").write_bytes(whole + torn)
        RunFolder(tmp_path, {}, resume=True).finish({})
        assert events(tmp_path)[-1]["event"] == "attempt"


def test_a_folder_that_cannot_be_resumed_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    start_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="--out"):
        RunFolder(tmp_path / "run", {})  # as a simulation does, which cannot be resumed
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(ConfigError, match="--out"):
        RunFolder(tmp_path / "run", {}, resume=True)
    for content in ("precious\n", "[1]\n", '{"t": 1}\n', "\xff\n"):
        (tmp_path / "events.jsonl").write_text(content)
        with pytest.raises(ConfigError, match="--out"):
            RunFolder(tmp_path, {}, resume=True)
        assert (tmp_path / "events.jsonl").read_text() == content


@pytest.mark.parametrize("at", ["first", "middle", "last"])
def test_a_damaged_log_does_not_block_resuming(tmp_path: Path, at: str) -> None:
    start_run(tmp_path)
    path = tmp_path / "events.jsonl"
    RunFolder(tmp_path, {}, resume=True).finish({})
    lines = path.read_bytes().splitlines(keepends=True)
    which = {"first": 0, "middle": 1, "last": len(lines) - 1}[at]
    for bad in (b"\xff" + lines[which][1:], b"\0" * 600 + b"\n", b'{"t": NaN, "event": "x"}\n'):
        damaged = b"".join([*lines[:which], bad, *lines[which + 1 :]])
        path.write_bytes(damaged)
        RunFolder(tmp_path, {}, resume=True).finish({})
        found = events(tmp_path)
        assert len(found) == len(lines) - 1 + 2  # an attempt and a warning
        assert found[-1]["event"] == "warning" and "1 damaged" in str(found[-1]["message"])
        assert (tmp_path / "events.jsonl.damaged").read_bytes() == damaged
        RunRecord(tmp_path)  # the log can be reported on


def test_a_lost_run_json_does_not_block_resuming_if_there_are_checkpoints(tmp_path: Path) -> None:
    start_run(tmp_path)
    (tmp_path / "run.json").unlink()
    (tmp_path / "checkpoints" / "round-00000005").mkdir(parents=True)
    RunFolder(tmp_path, {}, resume=True).finish({})


def test_everything_in_a_run_folder_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    earlier = os.umask(0o022)
    try:
        path = tmp_path / "run"
        start_run(path)
        log = path / "events.jsonl"
        log.write_bytes(b"damaged\n" + log.read_bytes())
        checkpoints = Checkpoints(path)
        checkpoints.start(RunIdentity("a" * 32, {}), 0)
        checkpoints.save(Snapshot(1, {"w": torch.ones(2)}, {}), 2)
        checkpoints.flush()
        (path / "settings.json").unlink()
        run = RunFolder(path, {}, resume=True)
        run.save_weights({"bottom": torch.nn.Linear(2, 2)})
        run.write("replay.toml", "")
        run.finish({})
    finally:
        os.umask(earlier)
    modes = {p.relative_to(tmp_path): p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    readable = {str(p): oct(mode) for p, mode in modes.items() if mode & 0o077}
    assert not readable
    assert Path("run/checkpoints/round-00000001/tensors.safetensors") in modes
    assert {Path("run/weights.safetensors"), Path("run/events.jsonl.damaged")} <= modes.keys()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    first = RunFolder(tmp_path, {})
    with pytest.raises(ConfigError, match="another process uses"):
        RunFolder(tmp_path, {}, resume=True)
    first.finish({})
    RunFolder(tmp_path, {}, resume=True).finish({})
