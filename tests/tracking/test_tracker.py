"""Every tracker writes real files that its own library reads, and its errors never end a run."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest

import celu
from celu.errors import ConfigError
from celu.events import EVENT_TYPES, Event, RoundDone, TrainingStarted
from celu.run_folder import RunFolder
from celu.tracking import tracker as tracker_module
from federation import federation
from record.folders import evaluation_event, events, round_event
from tracking.readers import PACKAGES, points, settings, status

# The libraries' own imports emit warnings.
pytestmark = pytest.mark.filterwarnings("ignore")
Kind = Literal["tensorboard", "mlflow", "wandb"]
NAMES = {
    *("training/loss", "held-out/auc", "held-out/loss", "bytes/sent", "bytes/received"),
    *("local/steps", "local/bubbles", "time/waiting share"),
    *("link/sent Mbps", "link/received Mbps"),
    *(f"similarity/{at}%" for at in (0, 10, 25, 50, 75, 100)),
}


@pytest.fixture(params=PACKAGES)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    pytest.importorskip(PACKAGES[request.param], reason=f"the extra {request.param} is absent")
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE"):
        monkeypatch.delenv(variable, raising=False)
    found: Kind = request.param
    return found


def emit(tracker: celu.Tracker, events: list[dict[str, Any]]) -> None:
    for event in events:
        tracker(EVENT_TYPES.get(event["event"], Event).model_validate(event))


def fail(message: str) -> None:
    raise AssertionError(message)


def track(kind: Kind, folder: Path, events: list[dict[str, Any]], **more: Any) -> None:
    messages: list[str] = []
    with celu.Tracker(kind, folder, name="airline", warn=messages.append, **more) as tracker:
        emit(tracker, events)
    assert messages == []


def test_metrics_are_written_with_the_round_as_step(kind: Kind, tmp_path: Path) -> None:
    job = celu.Job(rounds=20, hosts={"weather": 8})
    track(kind, tmp_path, events(20), job=job)
    found = points(kind, tmp_path)
    assert set(found) == ({n.strip("%") for n in NAMES} if kind == "mlflow" else NAMES)
    assert found["training/loss"] == {n: [pytest.approx(1 / n)] for n in range(1, 21)}
    assert found["held-out/auc"] == {10: [pytest.approx(0.625)], 20: [pytest.approx(0.65)]}
    assert found["link/sent Mbps"][20] == [pytest.approx(1000 * 8e-6 / 0.5)]
    contract = {name: str(value) for name, value in job.contract().items()}
    recorded = settings(kind, tmp_path)
    assert {name: recorded[name] for name in contract} == contract


def test_the_learning_rate_is_written_where_it_is_recorded(kind: Kind, tmp_path: Path) -> None:
    track(kind, tmp_path, [*events(2), round_event(3, lr=0.05)])
    assert points(kind, tmp_path)["training/lr"] == {3: [pytest.approx(0.05)]}


def test_a_resumed_run_continues_the_run_of_its_first_attempt(kind: Kind, tmp_path: Path) -> None:
    track(kind, tmp_path, events(25))
    resumed = {"t": 99.0, "event": "resumed", "round": 20, "num_rounds": 40}
    track(kind, tmp_path, [resumed, *(round_event(n, loss=7.0) for n in range(21, 30))])
    loss = points(kind, tmp_path)["training/loss"]
    assert sorted(loss) == list(range(1, 30)) and loss[20] == [pytest.approx(0.05)]
    assert loss[26] == [7.0]
    # Repeated rounds: TensorBoard replaces them, MLflow has them, W&B shows both.
    expected = {"tensorboard": [7.0], "mlflow": [1 / 21], "wandb": [1 / 21, 7.0]}
    assert loss[21] == pytest.approx(expected[kind])


def test_values_that_are_not_finite_are_left_out(kind: Kind, tmp_path: Path) -> None:
    odd = round_event(1, loss=float("nan"), similarity_quantiles=None)
    track(kind, tmp_path, [*events(1)[:3], odd, evaluation_event(1, 0.5)])
    found = points(kind, tmp_path)
    assert "training/loss" not in found and found["held-out/auc"] == {1: [0.5]}


def test_a_simulation_from_python_is_tracked(kind: Kind, tmp_path: Path) -> None:
    fed = federation()
    with celu.Tracker(kind, tmp_path, job=fed.job, warn=fail) as tracker:
        result = celu.simulate(fed.job, fed.guest, fed.hosts, callbacks=[tracker])
    assert points(kind, tmp_path)["held-out/loss"] == {
        int(e["round"]): [pytest.approx(e["loss"])] for e in result.evaluations
    }


def test_a_failed_run_is_marked_as_failed(kind: Kind, tmp_path: Path) -> None:
    if kind == "tensorboard":
        pytest.skip("its files do not say how a run ended")
    for name, error in (("good", None), ("bad", ValueError("it ends here"))):
        try:
            with celu.Tracker(kind, tmp_path / name, warn=fail) as tracker:
                emit(tracker, events(1))
                if error is not None:
                    raise error
        except ValueError as raised:
            assert raised is error
    ends = [status(kind, tmp_path / name) for name in ("good", "bad")]
    assert ends == {"mlflow": ["FINISHED", "FAILED"], "wandb": ["exit 0", "exit 1"]}[kind]


def test_an_error_of_a_tracker_ends_the_tracking_and_not_the_run(
    kind: Kind, tmp_path: Path
) -> None:
    messages: list[str] = []
    run = RunFolder(tmp_path, {})
    (tmp_path / kind).write_text("in the way")
    with celu.Tracker(kind, tmp_path, warn=messages.append) as tracker:
        run.add_callback(tracker)
        run.emit(TrainingStarted(num_rounds=9))
        run.emit(RoundDone(round=1, seconds=1.0))
    run.finish({"status": "done"})
    assert len(messages) == 1
    assert f"{kind} failed and is off for the rest of this run" in messages[0]


def test_a_missing_package_is_named(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow.tracking"}
    monkeypatch.setitem(sys.modules, modules.get(kind, kind), None)
    with pytest.raises(ConfigError, match=rf"pip install .celu\[{kind}\]"):
        celu.Tracker(kind, tmp_path)


def test_nothing_is_sent_over_the_network_by_default(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            addresses.append(address)
        original(self, address)

    original, addresses = socket.socket.connect, list[Any]()
    monkeypatch.setattr(socket.socket, "connect", connect)
    track(kind, tmp_path, events(3))
    assert [a for a in addresses if a[0] not in ("127.0.0.1", "::1", "localhost")] == []


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected one of tensorboard, mlflow, wandb, got 'aim'"):
        celu.Tracker("aim", tmp_path)  # type: ignore[arg-type]


class StuckBackend:
    """Stands for a server that does not answer: the other trackers write to local disks."""

    def __init__(self, *arguments: object) -> None:
        self.answers = threading.Event()

    def open(self, round_: int) -> None:
        self.answers.wait(600)

    def write(self, scalars: object, round_: int) -> None: ...

    def close(self, succeeded: bool) -> None: ...


def test_a_tracker_that_does_not_answer_never_holds_up_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = StuckBackend()
    monkeypatch.setitem(tracker_module.BACKENDS, "mlflow", lambda *_: stuck)
    monkeypatch.setattr(tracker_module, "CLOSE_S", 0.2)
    monkeypatch.setattr(tracker_module, "MAX_WAITING", 5)
    messages: list[str] = []
    started = time.monotonic()
    with celu.Tracker("mlflow", tmp_path, warn=messages.append) as tracker:
        emit(tracker, events(20))
    assert time.monotonic() - started < 60
    assert len(messages) == 1 and "it is 5 events behind" in messages[0]
    with celu.Tracker("mlflow", tmp_path, warn=messages.append) as tracker:
        emit(tracker, events(1))
    assert len(messages) == 2 and "to write what was left" in messages[1]
    stuck.answers.set()
