"""Small runs that tests export: real run folders, written by `celu simulate` and `celu.run`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import celu
import celu.simulation
from celu.cli.app import app
from celu.data.dataset import Batch
from celu.testing import free_port
from stores import write_store

ROWS = 160
NAMES = ["a | b", "`c`", "<script>alert(1)</script>", "d\ne *f* [g](h)"]  # of columns


@dataclass(frozen=True)
class Task:
    """A small job; `bottom` and `top` are TOML values."""

    bottom: str = '{ use = "wdl", embedding_dim = 3, hidden = [5] }'
    top: str = '"wdl"'
    loss: str = "binary"
    hosts: tuple[str, ...] = ("weather",)
    guest_has_features: bool = True
    data: str = ""  # more of [data]
    job: str = ""
    files: dict[str, str] = field(default_factory=dict)  # in the folder of every party


@dataclass(frozen=True)
class Trained:
    """The run folder of every party, and the modules that were trained."""

    runs: dict[str, Path]
    guest: celu.Guest
    hosts: dict[str, celu.Host]

    def outputs(self, rows: int) -> tuple[Tensor, list[Tensor], Batch]:
        """The top's output, each host's Z and the guest's rows, for the first held-out rows."""
        batch = self.guest.test.take(slice(0, rows))
        with torch.no_grad():
            z_of_hosts = [
                host.bottom.eval()(**host.test.take(slice(0, rows)).inputs)
                for host in self.hosts.values()
            ]
            bottom = self.guest.bottom
            own = [] if bottom is None else [bottom.eval()(**batch.inputs)]
            output = self.guest.top.eval()(*own, *z_of_hosts)
        return output, z_of_hosts, batch


def write_task(folder: Path, task: Task) -> list[str]:
    """Write stores and settings; returns the arguments of `celu simulate` before --out."""
    random = np.random.default_rng(3)
    labels = {
        "binary": lambda x: (x > 0).astype(np.float32),
        "multiclass": lambda x: np.digitize(x, [-0.5, 0.5]).astype(np.int64),
    }.get(task.loss, lambda x: x)
    parties = []
    for name in ("airline", *task.hosts):
        x = random.normal(size=(ROWS, 4)).astype(np.float32)
        columns: dict[str, Any] = {name: x[:, i] for i, name in enumerate(NAMES)}
        columns["codes"] = random.integers(0, 7, size=ROWS).astype(np.int32)
        model = f"bottom = {task.bottom}\n"
        if name == "airline":
            columns["label"] = labels(x[:, 0])
            model = model if task.guest_has_features else ""
            model += f'top = {task.top}\nloss = "{task.loss}"\n'
        write_store(folder / name / "store", columns, {"codes": 7})
        peers = task.hosts if name == "airline" else ("airline",)
        listed = "".join(f'[peers.{peer}]\nconnect = "localhost:1"\n' for peer in peers)
        role = "guest" if name == "airline" else "host"
        (folder / name / "party.toml").write_text(
            f'role = "{role}"\nname = "{name}"\ninsecure = true\n{listed}'
            f'[data]\nstore = "store"\naligned = true\n{task.data}[model]\n{model}'
        )
        for file, text in task.files.items():
            (folder / name / file).write_text(text)
        parties.append(str(folder / name / "party.toml"))
    hosts = "".join(f"[hosts.{host}]\nz_width = 6\n" for host in task.hosts)
    (folder / "job.toml").write_text(
        f'guest = "airline"\nrounds = 6\nbatch_size = 32\n{task.job}'
        f'{"" if hosts else "hosts = {}"}\n{hosts}[evaluation]\nevery = 3\nmetric = "loss"\n'
    )
    return ["simulate", *parties, "--job", str(folder / "job.toml")]


def train(folder: Path, task: Task) -> Trained:
    """Train with `celu simulate`, in this process."""
    arguments = write_task(folder, task)
    found: dict[str, Any] = {}
    simulate = celu.simulation.simulate_all

    def remember(
        job: celu.Job, guest: celu.Guest, hosts: Any, **more: Any
    ) -> dict[str, celu.Result]:
        found.update(guest=guest, hosts=dict(hosts))
        return simulate(job, guest, hosts, **more)

    out = folder / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(celu.simulation, "simulate_all", remember)
        invoke(*arguments, "--out", out)
    # In the order of the job: `simulate` reads the parties in the order of the command.
    hosts = {name: found["hosts"][name] for name in task.hosts}
    runs = {"airline": out, **{name: out / "hosts" / name for name in task.hosts}}
    return Trained(runs, found["guest"], hosts)


def invoke(*arguments: str | Path) -> str:
    """What a command prints; errors of celu are raised."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


class Own(nn.Module):
    """A bottom from Python with a single value and a grid for each row, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(6)

    def forward(self, age: Tensor, grid: Tensor, word: Tensor) -> Tensor:
        x = grid.flatten(1) + age[:, None] + word
        z: Tensor = self.norm(self.second(self.first(x).relu()))
        return z


class Join(nn.Module):
    """A top from Python."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 1)

    def forward(self, own: Tensor, theirs: Tensor) -> Tensor:
        logits: Tensor = self.layer(torch.cat([own, theirs], dim=1))
        return logits


def run_from_python(folder: Path) -> Trained:
    """Train modules and arrays from Python with `celu.run`, one thread for each party.

    Each party.toml also has a [model], which `celu.run` does not use.
    """
    random = torch.Generator().manual_seed(5)

    def rows() -> dict[str, Tensor]:
        return {
            "age": torch.randn(ROWS, generator=random),
            "grid": torch.randn(ROWS, 2, 3, generator=random),
            "word": torch.randint(0, 9, (ROWS, 6), generator=random),
        }

    own, theirs = rows(), rows()
    train_rows = celu.Dataset(own, (own["age"] > 0).float())
    torch.manual_seed(1)
    guest = celu.Guest(bottom=Own(), top=Join(), loss="binary", train=train_rows, test=train_rows)
    host = celu.Host(bottom=Own(), train=celu.Dataset(theirs), test=celu.Dataset(theirs))
    job = celu.Job(rounds=5, batch_size=32, guest="airline", hosts={"weather": 6})
    address = f"127.0.0.1:{free_port()}"
    models = {
        "airline": '[model]\nbottom = "wdl"\ntop = "wdl"\nloss = "regression"\n',
        "weather": '[model]\nbottom = "wdl"\n',
    }
    for name, role, peer, listen, connect in (
        ("airline", "guest", "weather", f'listen = "{address}"', ""),
        ("weather", "host", "airline", "", f'connect = "{address}"'),
    ):
        (folder / name).mkdir()
        (folder / name / "party.toml").write_text(
            f'role = "{role}"\nname = "{name}"\nrun_dir = "run"\ninsecure = true\nconnect_s = 600\n'
            f"deadline_s = 600\n{listen}\n[peers.{peer}]\n{connect}\n{models[name]}"
        )
    failures: list[BaseException] = []

    def run_host() -> None:
        try:
            celu.run(job, host, folder / "weather" / "party.toml")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run_host)
    thread.start()
    try:
        celu.run(job, guest, folder / "airline" / "party.toml")
    finally:
        thread.join(600)
    assert not failures, failures
    runs = {name: folder / name / "run" for name in ("airline", "weather")}
    return Trained(runs, guest, {"weather": host})
