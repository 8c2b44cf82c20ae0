"""The Python API as a PyTorch user writes it, in one process and over the network."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import celu
from celu.certs import make_authority, make_party
from celu.errors import CallbackError, ConfigError, DataError, ModelError, PeerLost
from celu.metrics.names import METRICS
from celu.testing import free_port

ROWS = 200


class Linear(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.layer(x).relu()
        return z


class Join(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def forward(self, *z: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(torch.cat(z, dim=1)).squeeze(1)
        return output


def parties(loss: Any = "binary") -> tuple[celu.Guest, celu.Host]:
    torch.manual_seed(1)
    x, other = torch.randn(ROWS, 3), torch.randn(ROWS, 3)
    y = ((x + other).sum(dim=1) > 0).float()
    data = celu.Dataset({"x": x}, y)
    guest = celu.Guest(bottom=Linear(4), top=Join(8), loss=loss, train=data, test=data)
    rows = celu.Dataset({"x": other})
    return guest, celu.Host(bottom=Linear(4), train=rows, test=rows)


def small_job(**more: Any) -> celu.Job:
    settings = {"rounds": 40, "batch_size": 20, "guest": "airline", "hosts": {"weather": 4}}
    return celu.Job(**{**settings, **more})


def test_the_result_has_the_metrics_of_the_last_evaluation() -> None:
    guest, host = parties()
    result = celu.simulate(small_job(), guest, {"weather": host}, link="wan-300")
    assert result.rounds == 40
    assert result.metrics.keys() == {"loss", *METRICS["binary"]}
    assert result.metrics["auc"] == result.evaluations[-1]["auc"] > 0.8


def test_a_loss_is_a_name_or_a_callable() -> None:
    def squared(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (output.sigmoid() - labels) ** 2

    guest, host = parties(squared)
    result = celu.simulate(small_job(), guest, {"weather": host})
    assert result.metrics.keys() == {"loss", "auc", "pr_auc", "ks"}
    with pytest.raises(
        ConfigError, match=r'expected one of "binary", .* or a callable, got .brier'
    ):
        parties("brier")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"top": torch.relu}, ModelError, "top: expected an nn.Module, got the function"),
        ({"top": None}, ModelError, "top: expected an nn.Module, got an object of"),
        ({"bottom": nn.Linear}, ModelError, "bottom: .* got the class .*Linear; create a module"),
        ({"train": torch.zeros(3)}, DataError, "train: expected a celu.Dataset, got an .*Tensor"),
        ({"test": None}, DataError, "test: expected a celu.Dataset, got an object of .*NoneType"),
    ],
)
def test_what_is_no_module_or_dataset_is_refused_at_once(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    guest, host = parties()
    with pytest.raises(error, match=message):
        dataclasses.replace(guest, **change)
    if "top" not in change:
        with pytest.raises(error, match=message):
            dataclasses.replace(host, **change)


def test_parties_in_each_others_place_are_named() -> None:
    guest, host = parties()
    swapped: Any = (host, {"weather": guest})
    with pytest.raises(ConfigError, match=r"guest: expected a celu\.Guest, got Host"):
        celu.simulate(small_job(), *swapped)
    swapped = (guest, {"weather": guest})
    with pytest.raises(ConfigError, match=r"hosts: weather: expected a celu\.Host, got Guest"):
        celu.simulate(small_job(), *swapped)


def test_callbacks_get_typed_events_of_guest_and_hosts() -> None:
    guest, host = parties()
    events: list[celu.Event] = []
    of_host: list[celu.Event] = []
    celu.simulate(
        small_job(),
        guest,
        {"weather": host},
        callbacks=[events.append],
        host_callbacks={"weather": [of_host.append]},
    )
    assert [e.event for e in events if e.event != "round"] == ["started", "evaluation"]
    rounds = [e for e in of_host if isinstance(e, celu.events.RoundDone)]
    assert [e.round for e in rounds] == list(range(1, 41))


def test_inputs_of_a_guest_that_no_bottom_takes_are_a_warning() -> None:
    guest, host = parties()
    events: list[celu.Event] = []
    alone = dataclasses.replace(guest, bottom=None, top=Join(4))
    celu.simulate(small_job(), alone, {"weather": host}, callbacks=[events.append])
    (warning,) = [e.message for e in events if isinstance(e, celu.events.Warned)]
    assert warning.startswith("the inputs x of airline are not used, since it has no bottom")


class Lazy(Linear):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.layer = nn.LazyLinear(width)


class LazyJoin(Join):
    def __init__(self) -> None:
        super().__init__(1)
        self.layer = nn.LazyLinear(1)


def test_lazy_modules_are_trained_with_any_optimizer() -> None:
    for name in ("adagrad", "sgd", "adam"):
        guest, host = parties()
        own = dataclasses.replace(guest, bottom=Lazy(4), top=LazyJoin())
        lazy = dataclasses.replace(host, bottom=Lazy(4))
        job = small_job(optimizer={"name": name, "lr": 0.1})
        result = celu.simulate(job, own, {"weather": lazy})
        assert result.metrics["auc"] > 0.8


def write_party(folder: Path, role: str, name: str, peer: str, listen: str, connect: str) -> Path:
    path = folder / name / "party.toml"
    path.write_text(
        f"""role = "{role}"
name = "{name}"
run_dir = "run"
{listen}

[peers.{peer}]
ca = "../{peer}/ca.pem"
{connect}

[keys]
certificate = "{name}.pem"
key = "{name}.key"
"""
    )
    return path


def settings_files(folder: Path) -> dict[str, Path]:
    for name in ("airline", "weather"):
        make_authority(folder / name, name)
        make_party(folder / name, name)
    address = f"127.0.0.1:{free_port()}"
    return {
        "airline": write_party(folder, "guest", "airline", "weather", f'listen = "{address}"', ""),
        "weather": write_party(folder, "host", "weather", "airline", "", f'connect = "{address}"'),
    }


def run_both(files: dict[str, Path], job: celu.Job, **more: Any) -> tuple[celu.Result, nn.Module]:
    """Both parties over mutual TLS; the guest's result and its trained top."""
    guest, host = parties()
    failures: list[BaseException] = []

    def run_host() -> None:
        try:
            celu.run(job, host, files["weather"])
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run_host)
    thread.start()
    try:
        result = celu.run(job, guest, files["airline"], **more)
    finally:
        thread.join(120)
    assert not failures, failures
    return result, guest.top


def test_run_trains_over_the_network_to_the_same_bits(tmp_path: Path) -> None:
    files = settings_files(tmp_path)
    events: list[celu.Event] = []
    result, top = run_both(files, small_job(), callbacks=[events.append])
    guest, host = parties()
    expected = celu.simulate(small_job(), guest, {"weather": host})
    assert result.metrics == expected.metrics
    for name, tensor in guest.top.state_dict().items():
        assert torch.equal(top.state_dict()[name], tensor)
    assert "connected" in {event.event for event in events}
    for name in files:
        assert (tmp_path / name / "run" / "weights.safetensors").exists()


def test_a_finished_run_stays_done_without_its_peer_and_helps_one_that_is_not(
    tmp_path: Path,
) -> None:
    files, job = settings_files(tmp_path), small_job()
    run_both(files, job)
    summary = tmp_path / "airline" / "run" / "summary.json"
    done = summary.read_bytes()
    present = files["airline"].read_text()
    files["airline"].write_text(f"connect_s = 0.5\n{present}")
    with pytest.raises(PeerLost, match=r"none came within 0\.5 s .*is done, and stays so"):
        celu.run(job, parties()[0], files["airline"])
    assert summary.read_bytes() == done
    assert json.loads((summary.parent / "settings.json").read_text())["party"]["connect_s"] == 0.5
    # The peer was killed before it had recorded its end, with a checkpoint less.
    files["airline"].write_text(present)
    theirs = tmp_path / "weather" / "run"
    (theirs / "summary.json").unlink()
    shutil.rmtree(max(theirs.glob("checkpoints/round-*")))
    run_both(files, job)
    assert json.loads((theirs / "summary.json").read_text())["status"] == "done"
    # Under another contract, or with more rounds to come, it is not done.
    files["airline"].write_text(f"connect_s = 0.5\n{present}")
    with pytest.raises(PeerLost):
        celu.run(job, parties()[0], files["airline"], more=1)
    assert json.loads(summary.read_text())["status"] == "PeerLost"


def test_run_refuses_a_party_of_the_other_role(tmp_path: Path) -> None:
    files = settings_files(tmp_path)
    _, host = parties()
    with pytest.raises(ConfigError, match=r"role: expected the role of the Host .*got 'guest'"):
        celu.run(small_job(), host, files["airline"])
    assert not (tmp_path / "airline" / "run").exists()


def test_a_wrong_job_is_a_config_error_that_names_the_fields(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batch_size: expected .*got 0"):
        celu.Job(rounds=5, batch_size=0, hosts={"b": 3})
    path = tmp_path / "job.toml"
    path.write_text("rounds = 5\nbatch_size = 0\n[hosts]\nb = 3\n")
    with pytest.raises(ConfigError, match=r"job\.toml: batch_size: expected .*got 0"):
        celu.read_job(str(path))


def test_a_dataset_is_short_in_a_notebook() -> None:
    data = celu.Dataset({"x": torch.zeros(200, 3)}, torch.zeros(200))
    assert repr(data) == "Dataset(x [200, 3]; labels [200])"
    assert len(data) == 200


def test_checkpoints_take_a_path_as_text(tmp_path: Path) -> None:
    guest, host = parties()
    folders = {name: str(tmp_path / name) for name in ("airline", "weather")}
    checkpoints = {name: celu.Checkpoints(folder) for name, folder in folders.items()}
    job = small_job(checkpoint={"every": 10})
    celu.simulate(job, guest, {"weather": host}, checkpoints=checkpoints)
    assert celu.Checkpoints(folders["airline"]).available_rounds()[-1] == 40


def test_rows_in_another_order_are_named_as_such() -> None:
    guest, host = parties()
    ids = torch.arange(ROWS).numpy().astype("V16")
    table = celu.Dataset(host.train.inputs, tags=ids.view("u1").reshape(ROWS, 16)[::-1].copy())
    mine = celu.Dataset(
        guest.train.inputs, guest.train.labels, tags=ids.view("u1").reshape(ROWS, 16)
    )
    other = celu.Host(bottom=host.bottom, train=table, test=table)
    own = celu.Guest(bottom=guest.bottom, top=guest.top, loss=guest.loss, train=mine, test=mine)
    with pytest.raises(celu.CeluError, match="same rows in other parts or another order"):
        celu.simulate(small_job(), own, {"weather": other})


def no_space(event: celu.Event) -> None:
    if event.event == "evaluation":
        raise OSError(28, "No space left on device", "/home/ana/notebook.csv")


class Logger:
    def __call__(self, event: celu.Event) -> None:
        if event.event == "started":
            raise ValueError("closed")


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (no_space, "the callback no_space raised OSError at the event 'evaluation'"),
        (Logger(), "the callback Logger raised ValueError at the event 'started'"),
    ],
    ids=["no_space", "Logger"],
)
def test_an_error_of_a_callback_ends_the_run_and_names_the_callback(
    tmp_path: Path, callback: Any, expected: str
) -> None:
    files = settings_files(tmp_path)
    guest, host = parties()
    of_host: list[BaseException] = []

    def run_host() -> None:
        try:
            celu.run(small_job(), host, files["weather"])
        except BaseException as error:
            of_host.append(error)

    thread = threading.Thread(target=run_host)
    thread.start()
    with pytest.raises(CallbackError, match=expected) as caught:
        celu.run(small_job(), guest, files["airline"], callbacks=[callback])
    thread.join(600)
    assert caught.value.__cause__ is not None
    assert "/home/ana" not in str(of_host[0]), "a peer learns the kind of the error only"
    summary = json.loads((tmp_path / "airline" / "run" / "summary.json").read_text())
    assert summary["status"] == "CallbackError" and expected in summary["message"]


def test_an_error_of_a_callback_ends_a_simulation_and_names_the_callback() -> None:
    guest, host = parties()
    with pytest.raises(CallbackError, match="the callback no_space raised OSError"):
        celu.simulate(small_job(), guest, {"weather": host}, callbacks=[no_space])


@pytest.mark.parametrize("more", [-3, True, 2.5, "9"])
def test_more_rounds_are_a_number_of_at_least_1(tmp_path: Path, more: Any) -> None:
    files = settings_files(tmp_path)
    guest, host = parties()
    message = r"more: expected a whole number of rounds to add, of at least 1, got"
    with pytest.raises(ConfigError, match=message):
        celu.run(small_job(), guest, files["airline"], more=more)
    assert not (tmp_path / "airline" / "run").exists()
    stores = {name: celu.Checkpoints(tmp_path / "c" / name) for name in ("airline", "weather")}
    with pytest.raises(ConfigError, match=message):
        celu.simulate(small_job(), guest, {"weather": host}, checkpoints=stores, more=more)
