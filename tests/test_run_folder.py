"""The run folder: new, resumed or refused."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest
import torch

from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.identity import RunIdentity
from celu.checkpoint.writer import InlineWriter
from celu.errors import CallbackError, ConfigError
from celu.events import Event, LinkDown, TrainingResumed, TrainingStarted, Warned, call_all
from celu.record.run import RunRecord
from celu.run_folder import RunFolder, read_summary


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


def test_the_summary_of_a_finished_run_stays_only_under_the_same_contract(tmp_path: Path) -> None:
    start_run(tmp_path)
    settings = {"job": {"seed": 1}}
    RunFolder(tmp_path, settings, resume=True).finish({"status": "done", "rounds": 9})
    done = read_summary(tmp_path)
    again = RunFolder(tmp_path, settings, resume=True, keep_done=True)
    assert again.is_done and read_summary(tmp_path) == done  # also if it is killed now
    again.finish({"status": "PeerLost"})
    assert read_summary(tmp_path) == done
    other = RunFolder(tmp_path, {"job": {"seed": 2}}, resume=True, keep_done=True)
    assert not other.is_done and read_summary(tmp_path) == {}
    other.finish({"status": "PeerLost"})
    assert read_summary(tmp_path)["status"] == "PeerLost"


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
    times = [b'{"t": NaN, "event": "x"}\n', b'{"t": 1e300, "event": "x"}\n']
    for bad in (b"\xff" + lines[which][1:], b"\0" * 600 + b"\n", *times):
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


def test_a_folder_without_run_json_resumes_after_a_restart_gave_its_checkpoints_up(
    tmp_path: Path,
) -> None:
    start_run(tmp_path)
    checkpoints = Checkpoints(tmp_path, writer=InlineWriter())
    checkpoints.start(RunIdentity("a" * 32, {}), 0)
    checkpoints.save(Snapshot(1, {"w": torch.ones(2)}, {}), 2)
    (tmp_path / "run.json").unlink()
    Checkpoints(tmp_path).restart_from(0)  # and the process is killed before it connects
    RunFolder(tmp_path, {}, resume=True).finish({})
    assert Checkpoints(tmp_path).scan() == (RunIdentity("a" * 32, {}), [0])


@pytest.mark.parametrize("state", ["superseded", "discarded"])
def test_a_checkpoint_that_was_set_aside_identifies_its_folder(tmp_path: Path, state: str) -> None:
    start_run(tmp_path)
    (tmp_path / "run.json").unlink()
    (tmp_path / "checkpoints" / f"{state}-00000005").mkdir(parents=True)
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


def test_a_callback_that_fails_on_a_links_thread_ends_the_run_at_the_next_event(
    tmp_path: Path,
) -> None:
    def broken(event: Event) -> None:
        if event.event == "link_down":
            raise OSError(28, "No space left on device")

    folder = RunFolder(tmp_path / "run", {})
    folder.add_callback(call_all([broken]))
    folder.try_emit(LinkDown(peer="weather", reason="cut"))
    for _ in range(2):
        with pytest.raises(CallbackError, match=r"broken raised OSError at the event 'link"):
            folder.emit(Warned(message="next"))
    folder.finish({})


def test_resuming_a_run_with_a_large_log_takes_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "events.jsonl").open("w") as log:
        log.write('{"t": 0.0, "event": "attempt", "number": 1}\n')
        log.write('{"t": 0.1, "event": "started", "num_rounds": 9}\n')
        for n in range(40_000):
            log.write(json.dumps({"t": float(n), "event": "evaluation", "round": n}) + "\n")
    (tmp_path / "run.json").write_text("{}")
    tracemalloc.start()
    try:
        folder = RunFolder(tmp_path, {}, resume=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    folder.finish({})
    last = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["number"]) == ("attempt", 2) and last["t"] >= 39_999
    assert peak < 4_000_000  # of which the installed packages take most; all events: 20 MB
