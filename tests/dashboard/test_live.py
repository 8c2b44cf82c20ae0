"""Runs that are followed: what a page is told at first, and then."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from celu.dashboard.live import LiveRun, watch
from celu.errors import ConfigError
from celu.record.latest import REPORTS
from record.folders import evaluation_event, events, round_event, write_run


def follow(folder: Path) -> LiveRun:
    return watch([folder])[0]


def append(folder: Path, *happened: dict[str, Any]) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in happened)


def test_only_what_came_since_is_added(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(10))
    run = follow(folder)
    place, story = run.place, run.story
    assert run.lines()["loss"]["round"] == list(range(1, 11))
    run.refresh()
    assert run.place == place and run.added(place, place) is None
    append(folder, round_event(11), evaluation_event(11, 0.7))
    run.refresh()
    added = run.added(place, place)
    assert added is not None and run.story == story
    assert added["loss"] == {"round": [11], "seconds": [5.5], "bytes": [22_010], "y": [1 / 11]}
    assert added["held_out"]["auc"]["y"] == [0.7]
    assert [len(column) for column in added["similarity"]["quantiles"]] == [1] * 6
    assert run.added(place, run.place) is None


def test_where_a_run_goes_back_its_reader_begins_anew(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(20))
    run = follow(folder)
    append(folder, {"t": 20.0, "event": "resumed", "round": 10, "num_rounds": 40})
    run.refresh()
    assert run.story == 1 and run.lines()["loss"]["round"] == list(range(1, 11))


@pytest.mark.parametrize("rounds", [0, 1, 30], ids=["empty", "shorter", "longer"])
def test_where_another_run_takes_the_folder_its_reader_begins_anew(
    tmp_path: Path, rounds: int
) -> None:
    folder = write_run(tmp_path / "run", events(20))
    run = follow(folder)
    assert run.lines()["loss"]["round"][-1] == 20
    other = [{**event, "of": "another run"} for event in events(rounds)] if rounds else []
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in other))
    run.refresh()
    assert run.story == 1 and run.lines()["loss"]["round"] == list(range(1, rounds + 1))
    run.refresh()
    assert run.story == 1 and run.state()["warnings"] == []


def test_a_long_run_is_told_thinned_and_keeps_few_spans(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(2500))
    run = follow(folder)
    loss = run.lines()["loss"]
    assert len(loss["y"]) <= 600 and loss["y"][0] == 1.0 and loss["round"][-1] == 2500
    assert sum(bool(event.spans) for event in run.record.rounds) == REPORTS
    assert run.state()["window"]["last"] == 2500


def test_a_reader_that_was_told_much_begins_anew(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(10))
    run = follow(folder)
    since = run.place
    append(folder, *(round_event(n) for n in range(11, 611)))
    run.refresh()
    assert run.added(since, run.place - 1) is not None
    append(folder, round_event(611))
    run.refresh()
    with pytest.raises(ValueError, match="at most 600 new events, got 601"):
        run.added(since, run.place - 1)


def test_the_state_says_what_is_left_at_the_latest_pace(tmp_path: Path) -> None:
    happened = [*events(1)[:3], *(round_event(n) for n in range(1, 31))]
    happened[2]["num_rounds"] = 40
    figures = follow(write_run(tmp_path / "run", happened)).state()["figures"]
    assert figures["left_s"] == pytest.approx(5.0) and figures["left_bytes"] == 20_000
    assert figures["late_waited"] == pytest.approx(0.4) and figures["late_steps"] == 2.0
    done = follow(write_run(tmp_path / "done", summary={"status": "done"})).state()["figures"]
    assert done["left_s"] is None and done["left_bytes"] is None


def test_the_table_and_the_window_are_those_of_the_last_report(tmp_path: Path) -> None:
    table = [[9, 2, 0.8], [10, 1, None]]
    folder = write_run(tmp_path / "run", [*events(9), round_event(10, table=table)])
    state = follow(folder).state()
    assert state["table"] == [(9, 2, 0.8), (10, 1, None)]
    assert (state["window"]["first"], state["window"]["last"]) == (7, 10)
    assert {what for what, _, _ in state["window"]["spans"]} >= {"local", "wait", "send", "receive"}


def test_silence_is_measured_by_when_the_file_was_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(20))
    os.utime(folder / "events.jsonl", (1000.0, 1000.0))
    now = [1010.0]
    record = follow(folder).record
    run = LiveRun(record, "run", clock=lambda: now[0])
    assert run.state()["warnings"] == []
    now[0] = 1100.0
    assert [what for what, _, _ in run.state()["warnings"]] == ["silence"]


def test_a_folder_that_cannot_be_read_any_more_is_a_warning_until_it_can(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(5))
    run = follow(folder)
    (folder / "events.jsonl").rename(tmp_path / "away")
    run.refresh()
    (what, words, _), *_ = run.state()["warnings"]
    assert what == "record" and "expected a run folder with events.jsonl" in words
    assert run.lines()["loss"]["round"] == [1, 2, 3, 4, 5]
    (tmp_path / "away").rename(folder / "events.jsonl")
    run.refresh()
    assert run.state()["warnings"] == []


def test_nothing_is_written_to_a_folder_that_is_followed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(5))
    for path in (*folder.iterdir(), folder):
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())}
    run = follow(folder)
    run.refresh()
    run.state()
    assert {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())} == before
    folder.chmod(0o700)


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a run folder"):
        watch([tmp_path])
