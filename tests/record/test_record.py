"""Reading run folders: finished, growing, resumed, broken."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from celu.errors import ConfigError
from celu.events import TrainingStarted
from celu.record.run import RunRecord
from celu.record.tail import read_new_events
from celu.run_folder import RunFolder
from record.folders import evaluation_event, events, round_event, write_run


def test_a_finished_run_is_read_completely(tmp_path: Path) -> None:
    run = RunRecord(write_run(tmp_path / "run", summary={"status": "done", "rounds": 40}))
    assert (run.name, run.role, run.status, run.metric) == ("airline", "guest", "done", "auc")
    assert run.num_rounds == 40 and run.attempts == 1
    assert [r.round for r in run.rounds] == list(range(1, 41))
    assert run.rounds[1].loss == 0.5 and run.rounds[0].spans[0] == ("local", 0.0, 0.1)
    assert run.evaluations[-1].metrics == {"auc": pytest.approx(0.7), "loss": pytest.approx(0.3)}
    assert run.evaluations[-1].bytes == 100_010
    assert run.versions["celu"] == "0.1.0" and "versions" not in run.settings


def test_a_host_is_recognized_by_its_settings_and_uses_the_contracts_metric(
    tmp_path: Path,
) -> None:
    run = RunRecord(write_run(tmp_path / "run", [], party="weather"))
    assert (run.name, run.role, run.metric) == ("weather", "host", "auc")


def test_the_loss_replaces_a_metric_that_the_guest_does_not_report(tmp_path: Path) -> None:
    job = {"evaluation": {"every": 10, "metric": "rmse"}}
    assert RunRecord(write_run(tmp_path / "run", job=job)).metric == "loss"


def test_a_growing_run_is_read_line_by_line_and_an_incomplete_line_waits(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", events(1))
    run = RunRecord(folder)
    assert run.summary is None and run.status == "running"
    assert run.refresh() == []
    line = json.dumps(round_event(2)) + "\n"
    with (folder / "events.jsonl").open("a") as file:
        file.write(line[:30])
        file.flush()
        assert run.refresh() == []
        file.write(line[30:] + '{"t": 3')
        file.flush()
        assert [event.event for event in run.refresh()] == ["round"]
    assert [r.round for r in run.rounds] == [1, 2]
    (folder / "summary.json").write_text('{"status": "done"}')
    run.refresh()
    assert run.status == "done"


def test_reading_continues_from_a_position(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    first, position = read_new_events(folder)
    assert len(first) == len(events()) and read_new_events(folder, position) == ([], position)
    with pytest.raises(ConfigError, match="another run now writes"):
        read_new_events(folder, position + 1)


def test_a_folder_taken_by_another_run_is_read_from_the_start(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = RunRecord(folder)
    (folder / "events.jsonl").write_text(json.dumps(events()[0]) + "\n")
    assert [event.event for event in run.refresh()] == ["attempt"]
    assert run.rounds == []


def test_rounds_that_were_rolled_back_are_left_out(tmp_path: Path) -> None:
    written = [
        *events(25),
        {"t": 99.0, "event": "attempt", "number": 2},
        {"t": 99.0, "event": "resumed", "round": 20, "num_rounds": 40},
        *(round_event(n, loss=7.0) for n in range(21, 31)),
        evaluation_event(30, 0.9),
    ]
    run = RunRecord(write_run(tmp_path / "run", written))
    assert [r.round for r in run.rounds] == list(range(1, 31))
    assert [r.loss == 7.0 for r in run.rounds] == [False] * 20 + [True] * 10
    assert [e.round for e in run.evaluations] == [10, 20, 30]
    assert run.attempts == 2 and run.num_rounds == 40


def test_a_choice_emitted_again_after_an_interruption_counts_once(tmp_path: Path) -> None:
    choice = {"t": 2.0, "event": "choice", "round": 20, "until": 30, "seconds": 9.0}
    resumed = {"t": 3.0, "event": "resumed", "round": 20, "num_rounds": 40}
    written = [*events(20), {**choice, "reason": "a"}, resumed, {**choice, "reason": "b"}]
    run = RunRecord(write_run(tmp_path / "run", written))
    assert [c.reason for c in run.choices] == ["b"]


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("nonsense", "invalid JSON"),
        ("[1]", "without a time and an event name"),
        ('{"t": 1.0}', "without a time and an event name"),
        ('{"event": "x"}', "without a time and an event name"),
        ('{"t": 1, "event": "round", "seconds": 1}', "round: Field required"),
        ('{"t": 1, "event": ["x"]}', "without a time and an event name"),
        ("[" * 100_000, "invalid JSON"),
        ('{"t": 1, "event": "x", "a":' + "[" * 500 + "]" * 500 + "}", "invalid JSON"),
        ('{"t": NaN, "event": "x"}', "t: Input should be a finite number"),
        ('{"t": 1, "event": "round", "round": -1, "seconds": 1}', "round: Input should be"),
        ('{"t": 1, "event": "round", "round": 1, "seconds": 1e300}', "seconds: Input should be"),
        (
            '{"t": 1, "event": "round", "round": 1, "seconds": 1, "similarity_quantiles": [1]}',
            "similarity_quantiles: List should have at least 6 items",
        ),
        (
            '{"t": 1, "event": "evaluation", "round": 1, "seconds": 1, "auc": 1' + "0" * 400 + "}",
            "too many digits",
        ),
    ],
)
def test_a_line_that_is_not_an_event_is_named(tmp_path: Path, line: str, got: str) -> None:
    folder = write_run(tmp_path / "run", events(1))
    with (folder / "events.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match=rf"events.jsonl, line 5: .*{got}"):
        RunRecord(folder)


def test_a_folder_without_a_run_is_refused_and_the_missing_file_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"events.jsonl cannot be read"):
        RunRecord(tmp_path / "nowhere")
    folder = write_run(tmp_path / "run")
    (folder / "settings.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"settings.json: expected a JSON object, got list"):
        RunRecord(folder)
    (folder / "settings.json").unlink()
    with pytest.raises(ConfigError, match=r"settings.json is missing"):
        RunRecord(folder)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"job": []}, "job"),
        ({"party": 1.5}, "party"),
        ({"versions": {"celu": 1}}, "versions.celu"),
        ({"simulated": "yes"}, "simulated"),
        ({"job": {"hosts": 3}}, "job.hosts"),
        ({"job": {"method": {"R": []}}}, "job.method.R"),
        ({"party": {"outage_s": "long"}}, "party.outage_s"),
    ],
)
def test_a_damaged_setting_is_named(tmp_path: Path, changes: dict[str, object], key: str) -> None:
    folder = write_run(tmp_path / "run")
    settings = json.loads((folder / "settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps(settings | changes))
    with pytest.raises(ConfigError, match=rf"settings.json: {re.escape(key)}"):
        RunRecord(folder)


@pytest.mark.parametrize("name", ["settings.json", "summary.json", "run.json"])
@pytest.mark.parametrize("levels", [500, 100_000])
def test_json_with_many_levels_is_refused(tmp_path: Path, name: str, levels: int) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).write_text('{"a":' + "[" * levels + "]" * levels + "}")
    with pytest.raises(ConfigError, match=rf"{name}: expected JSON as celu writes it"):
        _ = RunRecord(folder).run_id


def test_a_resumed_run_does_not_have_the_status_of_its_earlier_attempt(tmp_path: Path) -> None:
    first = RunFolder(tmp_path, {})
    first.emit(TrainingStarted(num_rounds=9))
    (tmp_path / "run.json").write_text("{}")
    first.finish({"status": "PeerLost"})
    record = RunRecord(tmp_path)
    assert record.status == "PeerLost"
    again = RunFolder(tmp_path, {}, resume=True)
    record.refresh()
    assert record.status == "running"
    again.finish({"status": "done"})
    record.refresh()
    assert record.status == "done"


def test_checkpoints_are_those_in_the_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert RunRecord(folder).checkpoints == []
    for name in ("round-20", "round-10", "round-30.partial"):
        (folder / "checkpoints" / name).mkdir(parents=True)
    assert RunRecord(folder).checkpoints == [10, 20]
