"""What a report says of runs, from folders written by hand."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from celu.errors import ConfigError
from celu.events import RoundDone
from celu.record.downsample import MOST, downsampled
from celu.record.folders import read_runs
from celu.record.series import use
from celu.record.timeline import spans_in, window_at
from celu.report.content import content
from celu.report.render import write
from record.folders import evaluation_event, events, round_event, write_run


def shown(*folders: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(content(read_runs(folders))))
    return found


def test_runs_are_told_apart_by_as_little_of_their_paths_as_does_it(tmp_path: Path) -> None:
    a = write_run(tmp_path / "vanilla" / "run")
    b = write_run(tmp_path / "celu" / "run")
    c = write_run(tmp_path / "weather", party="weather")
    labels = [run["label"] for run in shown(a, b, c)["runs"]]
    assert labels == ["vanilla/run · airline", "celu/run · airline", "weather"]


def test_a_folder_named_twice_is_refused_however_it_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="each run folder once"):
        read_runs([folder, tmp_path / "." / "run"])
    (tmp_path / "same").symlink_to(folder)
    with pytest.raises(ConfigError, match="each run folder once"):
        read_runs([folder, tmp_path / "same"])


def test_the_figures_are_those_of_the_run(tmp_path: Path) -> None:
    run = shown(write_run(tmp_path / "run", summary={"status": "done"}))["runs"][0]
    figures = run["figures"]
    assert figures["rounds"] == "40 of 40" and figures["status"] == "done"
    assert figures["seconds"] == 20.0 and figures["waited"] == pytest.approx(0.4)
    assert (figures["bytes_sent"], figures["evaluation_bytes"]) == (40_000, 20_000)
    assert (figures["local_steps"], figures["bubbles"]) == (80, 3)
    assert (figures["metric"], figures["best"], figures["best_round"]) == ("auc", 0.7, 40)
    assert run["held_out"]["auc"]["round"] == [10, 20, 30, 40]
    assert len(run["similarity"]["quantiles"]) == 6


def test_a_run_is_judged_by_what_it_did_and_not_by_how_long_ago(tmp_path: Path) -> None:
    ended = {"status": "PeerLost", "message": "weather: gone"}
    failed = shown(write_run(tmp_path / "failed", events(5), summary=ended))["runs"][0]
    assert [what for what, _, _ in failed["warnings"]] == ["end"]
    assert shown(write_run(tmp_path / "running"))["runs"][0]["warnings"] == []


def test_the_best_loss_is_the_lowest(tmp_path: Path) -> None:
    job = {"evaluation": {"metric": "loss"}}
    happened = [*events(1), evaluation_event(1, 0.7), evaluation_event(2, 0.6)]
    figures = shown(write_run(tmp_path / "run", happened, job=job))["runs"][0]["figures"]
    assert figures["best"] == pytest.approx(0.3) and figures["best_round"] == 1


def test_a_run_in_which_nothing_has_happened_yet_can_be_reported(tmp_path: Path) -> None:
    run = shown(write_run(tmp_path / "run", []))["runs"][0]
    assert run["figures"]["rounds"] is None and run["figures"]["status"] == "running"


def test_what_went_wrong_is_told_in_words(tmp_path: Path) -> None:
    happened = [
        *events(3),
        {"t": 5.0, "event": "link_down", "peer": "weather", "reason": "reset"},
        {"t": 6.0, "event": "link_up", "peer": "weather", "seconds": 1.0},
        {"t": 7.0, "event": "restart", "message": "weather began anew"},
        {"t": 8.0, "event": "attempt", "number": 2},
        {"t": 9.0, "event": "damaged", "round": 2, "why": "a flipped byte"},
        {"t": 9.5, "event": "resumed", "round": 1, "num_rounds": 40},
        evaluation_event(5, 0.9, target_reached=True),
    ]
    told = shown(write_run(tmp_path / "run", happened))["runs"][0]["happened"]
    assert [what for _, what, _ in told] == [
        *("link down", "link up", "begins again", "started again", "damaged", "goes on", "target")
    ]
    assert told[0] == [5.0, "link down", "to weather: reset"]


def test_choices_come_with_their_reasons(tmp_path: Path) -> None:
    choice = {
        **{"t": 2.0, "event": "choice", "round": 3, "until": 9, "seconds": 2.0, "depth": 4},
        **{"W": {"guest": 5, "host": 5}, "R": {"guest": 3, "host": 1}},
        "codec": {"activation": "int8"},
    }
    happened = [*events(3), {**choice, "reason": "full"}, {**choice, "reason": "as before"}]
    choices = shown(write_run(tmp_path / "run", happened))["runs"][0]["choices"]
    assert [(c["round"], c["depth"], c["reason"]) for c in choices] == [(3, 4, "full")]


def test_settings_differ_where_runs_of_the_same_party_do(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a")
    b = write_run(tmp_path / "b", job={"seed": 2, "note": None})
    host = write_run(tmp_path / "host", party="weather")
    rows = {row["name"]: row for row in shown(a, b, host)["settings"]}
    assert [name for name, row in rows.items() if row["differs"]] == ["job.seed", "job.note"]
    assert rows["job.seed"]["values"] == ["1", "2", "1"]
    assert rows["job.note"]["values"] == [None, "null", None]
    assert rows["party.name"]["values"] == ["airline", "airline", "weather"]


def test_a_long_line_keeps_its_ends_and_its_extremes() -> None:
    values: list[float | None] = [0.001 * (i % 7) for i in range(50_000)]
    values[12_345], values[34_567], values[20_000] = 9.0, -9.0, None
    values[30_000] = float("nan")
    kept = downsampled(values)
    assert len(kept) <= MOST and kept == sorted(set(kept))
    assert {0, 12_345, 34_567, 49_999} <= set(kept)
    assert downsampled(values[:MOST]) == list(range(MOST))


def rounds_of(*happened: dict[str, Any]) -> list[RoundDone]:
    return [RoundDone.model_validate(event) for event in happened]


def test_the_use_of_the_line_is_what_crossed_it_over_time() -> None:
    # 1000 bytes each half second, then nothing for as long.
    rounds = rounds_of(*(round_event(n) for n in range(1, 5)))
    rounds += rounds_of(*(round_event(n, bytes_sent=4000) for n in range(5, 9)))
    found = use(rounds, lambda event: event.bytes_sent)
    assert found["y"] == pytest.approx([0.016] * 4 + [0.0] * 4)
    assert [b - a for a, b in pairwise(found["seconds"])] == pytest.approx([0.5] * 7)


def test_a_window_is_a_few_rounds_without_an_evaluation_if_there_are_any() -> None:
    rounds = rounds_of(*(round_event(n) for n in range(1, 21)))
    middle = window_at(rounds, 0.5)
    assert middle and (middle.first, middle.last) == (7, 10)
    assert (middle.start, middle.stop) == (3.0, 5.0)
    busy = round_event(10, spans=[["evaluate", 4.6, 4.9]])
    rounds[9:10] = rounds_of(busy)
    moved = window_at(rounds, 0.5)
    assert moved and not moved.first <= 10 <= moved.last
    assert window_at(rounds_of(round_event(1, spans=[])), 0.5) is None


def test_one_event_of_many_rounds_is_a_window_of_its_own() -> None:
    rounds = rounds_of(
        *(round_event(n, spans=[["wait", n - 2.0, n - 1.0]], seconds=n) for n in (50, 100))
    )
    window = window_at(rounds, 1.0)
    assert window and (window.first, window.last, window.start, window.stop) == (51, 100, 98, 100)


def test_spans_are_cut_to_their_window() -> None:
    rounds = rounds_of(*(round_event(n) for n in range(1, 21)))
    window = window_at(rounds, 0.5)
    assert window is not None
    found = spans_in(rounds, window, 0.0)
    assert min(a for _, a, _ in found) == 0.0
    assert max(b for _, _, b in found) == pytest.approx(window.stop - window.start)
    assert {what for what, _, _ in found} == {
        *("local", "wait", "receive", "compute", "encode", "send")
    }


def test_a_report_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--out: expected a file that can be written"):
        write("x", tmp_path / "nowhere" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="--out"):
        write("x", tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    write("x", tmp_path / "report.html")
    write("y", tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == "y"
