"""Live runs: the snapshot that a page gets first, and the updates after it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from celu.dashboard.live import LiveRun, open_runs
from celu.errors import ConfigError
from celu.record.recent import NUM_RECENT
from record.folders import evaluation_event, events, round_event, write_run


def open_run(folder: Path) -> LiveRun:
    return open_runs([folder])[0]


def append(folder: Path, *new_events: dict[str, Any]) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in new_events)


def test_only_new_points_are_sent_after_the_snapshot(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(10))
    run = open_run(folder)
    position, generation = run.position, run.generation
    assert run.series()["loss"]["round"] == list(range(1, 11))
    run.refresh()
    assert run.position == position and run.new_points(position, position) is None
    append(folder, round_event(11), evaluation_event(11, 0.7))
    run.refresh()
    points = run.new_points(position, position)
    assert points is not None and run.generation == generation
    assert points["loss"] == {"round": [11], "seconds": [5.5], "bytes": [22_010], "y": [1 / 11]}
    assert points["held_out"]["auc"]["y"] == [0.7]
    assert [len(column) for column in points["similarity"]["quantiles"]] == [1] * 6
    assert run.new_points(position, run.position) is None


def test_a_run_that_resumes_from_an_earlier_round_needs_a_new_snapshot(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(20))
    run = open_run(folder)
    append(folder, {"t": 20.0, "event": "resumed", "round": 10, "num_rounds": 40})
    run.refresh()
    assert run.generation == 1 and run.series()["loss"]["round"] == list(range(1, 11))


@pytest.mark.parametrize("rounds", [0, 1, 30], ids=["empty", "shorter", "longer"])
def test_a_folder_taken_by_another_run_needs_a_new_snapshot(tmp_path: Path, rounds: int) -> None:
    folder = write_run(tmp_path / "run", events(20))
    run = open_run(folder)
    assert run.series()["loss"]["round"][-1] == 20
    other = [{**event, "of": "another run"} for event in events(rounds)] if rounds else []
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in other))
    run.refresh()
    assert run.generation == 1 and run.series()["loss"]["round"] == list(range(1, rounds + 1))
    run.refresh()
    assert run.generation == 1 and run.state()["warnings"] == []


def test_a_long_run_is_downsampled_and_retains_few_spans(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(2500))
    run = open_run(folder)
    loss = run.series()["loss"]
    assert len(loss["y"]) <= 600 and loss["y"][0] == 1.0 and loss["round"][-1] == 2500
    assert sum(bool(event.spans) for event in run.record.rounds) == NUM_RECENT
    assert run.state()["window"]["last"] == 2500


def test_a_run_with_very_many_events_stays_small_in_memory(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(10))
    run = open_run(folder)
    best, num_retained, num_written = 12_345, [], len(events(10))
    for first in range(11, 40_011, 5000):
        new: list[dict[str, Any]] = []
        for n in range(first, first + 5000):
            new.append(evaluation_event(n, 0.9 if n == best else 0.6 + n / 1e6))
            new.append({"t": 1.0 + 0.5 * n, "event": "checkpoint", "round": n, "seconds": 0.5 * n})
            if n % 50 == 0:
                new += [
                    {"t": 0.5 * n, "event": "link_down", "peer": "weather", "reason": "cut"},
                    {"t": 0.5 * n, "event": "link_up", "peer": "weather", "seconds": 1.0},
                    round_event(n, spans=[]),
                ]
        append(folder, *new)
        num_written += len(new)
        run.refresh()
        num_retained.append(len(run.record.events))
        assert run.position == num_written
    assert max(num_retained) <= 10_000 and num_retained[-1] <= num_retained[2] + 1000
    assert run.generation == 0  # a page that is open needs no new snapshot because of this
    summary = run.state()["summary"]
    assert (summary["best"], summary["best_round"], summary["attempts"]) == (0.9, best, 1)
    evaluations = run.record.evaluations
    rounds = [event.round for event in evaluations]
    assert rounds == sorted(set(rounds)) and rounds[-1] == 40_010
    # No part of the run has faded: some evaluations remain in each of 100 parts of it.
    assert {round_ * 100 // 40_011 for round_ in rounds} == set(range(100))
    # A page's position is still valid: it gets the points after it.
    append(folder, evaluation_event(40_011, 0.7))
    position = run.position
    run.refresh()
    points = run.new_points(position - 300, position)
    assert points is not None and points["held_out"]["auc"]["round"] == [40_011]
    earlier = run.new_points(position - 300, position - 10)
    assert earlier is not None and len(earlier["held_out"]["auc"]["round"]) in (5, 6)


def test_the_file_of_a_long_run_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celu.dashboard.live._READ_BYTES", 1000)
    folder = write_run(tmp_path / "run", events(300))
    run = open_run(folder)
    assert run.position == len(events(300)) and run.series()["loss"]["round"][-1] == 300
    sizes = []
    refresh = run.record.refresh
    monkeypatch.setattr(run.record, "refresh", lambda: sizes.append(new := refresh()) or new)
    append(folder, *(round_event(n) for n in range(301, 321)))
    run.refresh()
    assert run.series()["loss"]["round"][-1] == 320 and run.generation == 0
    assert sum(map(len, sizes)) == 20 and max(map(len, sizes)) <= 3


def test_a_damaged_line_in_a_later_part_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celu.dashboard.live._READ_BYTES", 1000)
    folder = write_run(tmp_path / "run", events(100))
    run = open_run(folder)
    generation = run.generation
    with (folder / "events.jsonl").open("a") as file:
        file.write("damaged\n")
    for _ in range(3):
        run.refresh()
        assert "expected an event as celu writes it" in run.state()["warnings"][0][1]
    assert run.generation == generation and run.series()["loss"]["round"][-1] == 100


def test_a_compacted_record_forgets_rounds_that_a_resumed_run_repeats(tmp_path: Path) -> None:
    written = events(1)[:3]
    for start in (0, 3000, 6000):  # each attempt repeats all rounds after 1000
        written += [{"t": 0.0, "event": "attempt", "number": 2 + start // 3000}]
        written += [{"t": 0.0, "event": "resumed", "round": min(start, 1000), "num_rounds": 9000}]
        written += [round_event(n, spans=[]) for n in range(min(start, 1000) + 1, 6001)]
    record = open_run(write_run(tmp_path / "run", written)).record
    assert len(record.events) < len(written) / 2 and record.num_read == len(written)
    rounds = [event.round for event in record.rounds]
    assert rounds == sorted(set(rounds)) and rounds[0] == 1 and rounds[-1] == 6000
    assert (record.attempts, record.num_rounds) == (4, 9000)


def test_after_many_new_points_a_new_snapshot_is_needed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(10))
    run = open_run(folder)
    snapshot = run.position
    append(folder, *(round_event(n) for n in range(11, 611)))
    run.refresh()
    assert run.new_points(snapshot, run.position - 1) is not None
    append(folder, round_event(611))
    run.refresh()
    with pytest.raises(ValueError, match="at most 600 new events, got 601"):
        run.new_points(snapshot, run.position - 1)


def test_the_state_estimates_the_remaining_time_and_bytes_from_the_recent_pace(
    tmp_path: Path,
) -> None:
    written = [*events(1)[:3], *(round_event(n) for n in range(1, 31))]
    written[2]["num_rounds"] = 40
    summary = open_run(write_run(tmp_path / "run", written)).state()["summary"]
    assert summary["remaining_s"] == pytest.approx(5.0) and summary["remaining_bytes"] == 20_000
    assert (
        summary["recent_waiting_share"] == pytest.approx(0.4)
        and summary["recent_local_steps"] == 2.0
    )
    done = open_run(write_run(tmp_path / "done", summary={"status": "done"})).state()["summary"]
    assert done["remaining_s"] is None and done["remaining_bytes"] is None


def test_the_table_and_the_window_are_those_of_the_last_round_event(tmp_path: Path) -> None:
    table = [[9, 2, 0.8], [10, 1, None]]
    folder = write_run(tmp_path / "run", [*events(9), round_event(10, table=table)])
    state = open_run(folder).state()
    assert state["table"] == [(9, 2, 0.8), (10, 1, None)]
    assert (state["window"]["first"], state["window"]["last"]) == (7, 10)
    assert {what for what, _, _ in state["window"]["spans"]} >= {"local", "wait", "send", "receive"}


def test_silence_is_measured_from_the_last_write_to_the_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(20))
    os.utime(folder / "events.jsonl", (1000.0, 1000.0))
    now = [1010.0]
    record = open_run(folder).record
    run = LiveRun(record, "run", clock=lambda: now[0])
    assert run.state()["warnings"] == []
    now[0] = 1100.0
    assert [what for what, *_ in run.state()["warnings"]] == ["silence"]


def test_a_folder_that_becomes_unreadable_is_a_warning_until_it_is_back(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(5))
    run = open_run(folder)
    (folder / "events.jsonl").rename(tmp_path / "away")
    run.refresh()
    (topic, message, *_), *_ = run.state()["warnings"]
    assert topic == "record" and "events.jsonl cannot be read" in message
    assert run.series()["loss"]["round"] == [1, 2, 3, 4, 5]
    (tmp_path / "away").rename(folder / "events.jsonl")
    run.refresh()
    assert run.state()["warnings"] == []


def test_nothing_is_written_to_a_folder_that_is_followed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(5))
    for path in (*folder.iterdir(), folder):
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())}
    run = open_run(folder)
    run.refresh()
    run.state()
    assert {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())} == before
    folder.chmod(0o700)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        open_runs([tmp_path])
