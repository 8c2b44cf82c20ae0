"""Trackers write scalars, and their errors never end a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from celu.errors import ConfigError
from celu.events import EVENT_TYPES, Event, RoundDone, TrainingStarted
from celu.run_folder import RunFolder
from celu.tracking import FOLDER, TensorBoard
from record.folders import evaluation_event, events, round_event

# TensorBoard's own imports emit warnings.
pytestmark = pytest.mark.filterwarnings("ignore")


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / FOLDER))
    found.Reload()
    names = found.Tags()["scalars"]
    return {name: {e.step: e.value for e in found.Scalars(name)} for name in names}


def emit(tracker: TensorBoard, events: list[dict[str, Any]]) -> None:
    for event in events:
        tracker.event(EVENT_TYPES.get(event["event"], Event).model_validate(event))


def fail(message: str) -> None:
    raise AssertionError(message)


def test_scalars_are_written_with_the_round_as_step(tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path, fail)
    emit(tracker, events(20))
    tracker.close()
    found = scalars(tmp_path)
    assert set(found) == {
        *("training/loss", "held-out/auc", "held-out/loss", "bytes/sent", "bytes/received"),
        *("local/steps", "local/bubbles", "time/waiting share"),
        *("link/sent Mbps", "link/received Mbps"),
        *(f"similarity/{at}%" for at in (0, 10, 25, 50, 75, 100)),
    }
    assert found["training/loss"] == {n: pytest.approx(1 / n) for n in range(1, 21)}
    assert found["held-out/auc"] == {10: pytest.approx(0.625), 20: pytest.approx(0.65)}
    assert found["link/sent Mbps"][20] == pytest.approx(1000 * 8e-6 / 0.5)
    assert found["similarity/50%"][7] == pytest.approx(0.8)


def test_the_learning_rate_is_written_where_it_is_recorded(tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path, fail)
    emit(tracker, [*events(2), round_event(3, lr=0.05)])
    tracker.close()
    assert scalars(tmp_path)["training/lr"] == {3: pytest.approx(0.05)}


def test_a_resumed_run_overwrites_the_rounds_that_it_repeats(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path, fail)
    emit(first, events(25))
    first.close()
    again = TensorBoard(tmp_path, fail)
    resumed = {"t": 99.0, "event": "resumed", "round": 20, "num_rounds": 40}
    emit(again, [resumed, *(round_event(n, loss=7.0) for n in range(21, 24))])
    again.close()
    loss = scalars(tmp_path)["training/loss"]
    assert sorted(loss) == list(range(1, 24)) and loss[20] == pytest.approx(0.05)
    assert {loss[n] for n in (21, 22, 23)} == {7.0}


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path, fail)
    odd = round_event(1, loss=float("nan"), similarity_quantiles=None)
    emit(tracker, [*events(1)[:3], odd, evaluation_event(1, 0.5)])
    tracker.close()
    found = scalars(tmp_path)
    assert "training/loss" not in found and found["held-out/auc"] == {1: 0.5}


def test_a_disk_error_ends_the_tracking_and_not_the_run(tmp_path: Path) -> None:
    messages: list[str] = []
    run = RunFolder(tmp_path, {})
    (tmp_path / FOLDER).write_text("in the way")
    tracker = TensorBoard(tmp_path, messages.append)
    run.add_callback(tracker.event)
    run.emit(TrainingStarted(num_rounds=9))
    run.emit(RoundDone(round=1, seconds=1.0))
    tracker.close()
    run.finish({"status": "done"})
    assert len(messages) == 1 and "off for the rest of this run" in messages[0]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install .celu\[tensorboard\]"):
        TensorBoard(tmp_path, fail)
