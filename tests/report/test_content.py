"""The content of a report, from hand-written run folders."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from celu.errors import ConfigError
from celu.events import RoundDone
from celu.page.file import write
from celu.record.downsample import MAX_POINTS, downsample
from celu.record.folders import read_runs
from celu.record.series import throughput
from celu.record.timeline import choose_window, spans_in
from celu.report.content import content
from record.folders import evaluation_event, events, round_event, write_run


def report_content(*folders: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(content(read_runs(folders))))
    return found


def test_labels_are_the_shortest_unique_ends_of_the_paths(tmp_path: Path) -> None:
    a = write_run(tmp_path / "vanilla" / "run")
    b = write_run(tmp_path / "celu" / "run")
    c = write_run(tmp_path / "weather", party="weather")
    labels = [run["label"] for run in report_content(a, b, c)["runs"]]
    assert labels == ["vanilla/run · airline", "celu/run · airline", "weather"]


def test_a_folder_given_twice_is_refused_also_as_another_path(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="given twice"):
        read_runs([folder, tmp_path / "." / "run"])
    (tmp_path / "same").symlink_to(folder)
    with pytest.raises(ConfigError, match="given twice"):
        read_runs([folder, tmp_path / "same"])


def test_the_summary_matches_the_run(tmp_path: Path) -> None:
    run = report_content(write_run(tmp_path / "run", summary={"status": "done"}))["runs"][0]
    summary = run["summary"]
    assert summary["rounds"] == "40 of 40" and summary["status"] == "done"
    assert summary["seconds"] == 20.0 and summary["waiting_share"] == pytest.approx(0.4)
    assert (summary["bytes_sent"], summary["evaluation_bytes"]) == (40_000, 20_000)
    assert (summary["local_steps"], summary["bubbles"]) == (80, 3)
    assert (summary["metric"], summary["best"], summary["best_round"]) == ("auc", 0.7, 40)
    assert run["held_out"]["auc"]["round"] == [10, 20, 30, 40]
    assert len(run["similarity"]["quantiles"]) == 6


def test_the_best_value_of_a_metric_follows_its_direction(tmp_path: Path) -> None:
    def summary(name: str, metric: str, lower_is_better: list[str]) -> dict[str, Any]:
        start = {"t": 1.0, "event": "started", "num_rounds": 9, "lower_is_better": lower_is_better}
        found = [start, *(evaluation_event(n, 0.5, **{metric: 10.0 - n}) for n in (3, 6, 9))]
        job = {"evaluation": {"every": 3, "metric": metric}}
        run = report_content(write_run(tmp_path / name, found, job=job))["runs"][0]
        shown: dict[str, Any] = run["summary"]
        return shown

    assert summary("a", "cost", ["cost"])["best"] == 1.0
    assert summary("b", "gain", [])["best"] == 7.0
    assert summary("c", "brier", [])["best_round"] == 9
    assert summary("d", "pr_auc", [])["titles"]["pr_auc"] == "PR-AUC"


def test_the_learning_rate_is_shown_from_runs_that_recorded_it(tmp_path: Path) -> None:
    written = [*events(1), round_event(2, lr=0.1), round_event(3, lr=0.05)]
    old, new = (
        report_content(write_run(tmp_path / name, found))["runs"][0]["lr"]
        for name, found in (("old", events(3)), ("new", written))
    )
    assert (old["y"], new["round"], new["y"]) == ([], [2, 3], [0.1, 0.05])


def test_warnings_depend_on_what_a_run_did_and_not_on_its_age(tmp_path: Path) -> None:
    ended = {"status": "PeerLost", "message": "weather: gone"}
    failed = report_content(write_run(tmp_path / "failed", events(5), summary=ended))["runs"][0]
    assert [what for what, *_ in failed["warnings"]] == ["end"]
    assert report_content(write_run(tmp_path / "running"))["runs"][0]["warnings"] == []


def test_the_best_loss_is_the_lowest(tmp_path: Path) -> None:
    job = {"evaluation": {"metric": "loss"}}
    written = [*events(1), evaluation_event(1, 0.7), evaluation_event(2, 0.6)]
    summary = report_content(write_run(tmp_path / "run", written, job=job))["runs"][0]["summary"]
    assert summary["best"] == pytest.approx(0.3) and summary["best_round"] == 1


def test_a_run_without_events_can_be_reported(tmp_path: Path) -> None:
    run = report_content(write_run(tmp_path / "run", []))["runs"][0]
    assert run["summary"]["rounds"] is None and run["summary"]["status"] == "running"


def test_the_event_log_describes_notable_events(tmp_path: Path) -> None:
    written = [
        *events(3),
        {"t": 5.0, "event": "link_down", "peer": "weather", "reason": "reset"},
        {"t": 6.0, "event": "link_up", "peer": "weather", "seconds": 1.0},
        {"t": 7.0, "event": "restart", "message": "weather restarted"},
        {"t": 8.0, "event": "attempt", "number": 2},
        {"t": 9.0, "event": "damaged", "round": 2, "why": "a flipped byte"},
        {"t": 9.5, "event": "resumed", "round": 1, "num_rounds": 40},
        evaluation_event(5, 0.9, target_reached=True),
    ]
    log = report_content(write_run(tmp_path / "run", written))["runs"][0]["event_log"]
    assert [what for _, what, _ in log] == [
        *("link down", "link up", "starting over", "restarted", "checkpoint damaged", "resumed"),
        "target reached",
    ]
    assert log[0] == [5.0, "link down", "to weather: reset"]


def test_choices_have_their_reasons(tmp_path: Path) -> None:
    choice = {
        **{"t": 2.0, "event": "choice", "round": 3, "until": 9, "seconds": 2.0, "depth": 4},
        **{"W": {"guest": 5, "host": 5}, "R": {"guest": 3, "host": 1}},
        "codec": {"activation": "int8"},
    }
    written = [*events(3), {**choice, "reason": "full"}, {**choice, "reason": "as before"}]
    choices = report_content(write_run(tmp_path / "run", written))["runs"][0]["choices"]
    assert [(c["round"], c["depth"], c["reason"]) for c in choices] == [(3, 4, "full")]


def test_settings_are_compared_between_runs_of_the_same_party(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a")
    b = write_run(tmp_path / "b", job={"seed": 2, "note": None})
    host = write_run(tmp_path / "host", party="weather")
    rows = {row["name"]: row for row in report_content(a, b, host)["settings"]}
    assert [name for name, row in rows.items() if row["differs"]] == ["job.seed", "job.note"]
    assert rows["job.seed"]["values"] == ["1", "2", "1"]
    assert rows["job.note"]["values"] == [None, "null", None]
    assert rows["party.name"]["values"] == ["airline", "airline", "weather"]


def test_a_downsampled_series_has_its_ends_and_its_extremes() -> None:
    values: list[float | None] = [0.001 * (i % 7) for i in range(50_000)]
    values[12_345], values[34_567], values[20_000] = 9.0, -9.0, None
    values[30_000] = float("nan")
    chosen = downsample(values)
    assert len(chosen) <= MAX_POINTS and chosen == sorted(set(chosen))
    assert {0, 12_345, 34_567, 49_999} <= set(chosen)
    assert downsample(values[:MAX_POINTS]) == list(range(MAX_POINTS))


def rounds_of(*written: dict[str, Any]) -> list[RoundDone]:
    return [RoundDone.model_validate(event) for event in written]


def test_throughput_is_bytes_over_time() -> None:
    # 1000 bytes every half second, then none for the same time.
    rounds = rounds_of(*(round_event(n) for n in range(1, 5)))
    rounds += rounds_of(*(round_event(n, bytes_sent=4000) for n in range(5, 9)))
    found = throughput(rounds, lambda event: event.bytes_sent)
    assert found["y"] == pytest.approx([0.016] * 4 + [0.0] * 4)
    assert [b - a for a, b in pairwise(found["seconds"])] == pytest.approx([0.5] * 7)


def test_a_window_is_a_few_rounds_without_an_evaluation_if_possible() -> None:
    rounds = rounds_of(*(round_event(n) for n in range(1, 21)))
    middle = choose_window(rounds, 0.5)
    assert middle and (middle.first_round, middle.last_round) == (7, 10)
    assert (middle.start_s, middle.stop_s) == (3.0, 5.0)
    evaluated = round_event(10, spans=[["evaluate", 4.6, 4.9]])
    rounds[9:10] = rounds_of(evaluated)
    moved = choose_window(rounds, 0.5)
    assert moved and not moved.first_round <= 10 <= moved.last_round
    assert choose_window(rounds_of(round_event(1, spans=[])), 0.5) is None


def test_one_event_of_many_rounds_is_a_window() -> None:
    rounds = rounds_of(
        *(round_event(n, spans=[["wait", n - 2.0, n - 1.0]], seconds=n) for n in (50, 100))
    )
    window = choose_window(rounds, 1.0)
    assert window is not None
    assert (window.first_round, window.last_round) == (51, 100)
    assert (window.start_s, window.stop_s) == (98, 100)


def test_spans_are_clipped_to_the_window() -> None:
    rounds = rounds_of(*(round_event(n) for n in range(1, 21)))
    window = choose_window(rounds, 0.5)
    assert window is not None
    found = spans_in(rounds, window)
    assert min(a for _, a, _ in found) == 0.0
    assert max(b for _, _, b in found) == pytest.approx(window.seconds)
    assert {what for what, _, _ in found} == {
        *("local", "wait", "receive", "compute", "encode", "send")
    }


def test_a_failed_write_raises_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--out: cannot write"):
        write("x", tmp_path / "nowhere" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="--out"):
        write("x", tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    write("x", tmp_path / "report.html")
    write("y", tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == "y"
