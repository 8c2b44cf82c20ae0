"""Two parties as real processes, each of them one process or several ranks of torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from celu.testing import EventDict, free_port, read_events
from processes import CeluProcess
from stores import write_store

Process = CeluProcess | subprocess.Popen[bytes]

TIMEOUT_S = 900.0  # a passing test never gets near it, even on a busy machine
ROWS, TEST_ROWS, VALIDATION_ROWS, CODES = 192, 70, 37, 40  # 37: a part has one row
_JOB = """
seed = 3
batch_size = 18
rounds = {rounds}
guest = "guest"
codec = "{codec}"
[hosts.host]
z_width = 6
[method]
{method}
[checkpoint]
every = 5
[evaluation]
every = 10
[privacy]
{privacy}
"""
_METHOD = "W = 3\nR = 3\ndepth = 2"
_PARTY = """
role = "{role}"
name = "{role}"
insecure = true
threads = 1
device = "{device}"
heartbeat_s = 1
{more}
[data]
store = "store"
aligned = true
[model]
bottom = {bottom}
{model}
[peers.{peer}]
{peer_more}
"""
BOTTOM = '{ use = "wdl", embedding_dim = 4, hidden = [8] }'


@dataclass
class Parties:
    """A guest and a host in a folder, with rows and settings."""

    folder: Path
    rounds: int = 20
    method: str = _METHOD
    codec: str = "fp32"
    device: str = "cpu"
    privacy: str = ""
    bottom: str = BOTTOM
    more: str = ""  # settings of both parties
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_job("job.toml", self.method)
        for role in ("guest", "host"):
            self.write_rows(role)

    def write_rows(self, role: str, machine: str = "", *, flipped: bool = False) -> None:
        """Write a party's store; at another machine, perhaps with flipped labels."""
        rng = np.random.default_rng(len(role))
        parts: list[dict[str, Any]] = [
            {
                "x": rng.normal(size=rows).astype(np.float32),
                "c": rng.integers(0, CODES, rows),
                **({"label": rng.integers(0, 2, rows)} if role == "guest" else {}),
            }
            for rows in (ROWS, TEST_ROWS, VALIDATION_ROWS)
        ]
        for part in parts if flipped else []:
            part["label"] = 1 - part["label"]
        train, test, validation = parts
        store = self.folder / f"{role}{machine}" / "store"
        write_store(store, train, {"c": CODES}, test=test, validation=validation)

    def _write_job(self, name: str, method: str) -> None:
        text = _JOB.format(
            rounds=self.rounds, method=method, codec=self.codec, privacy=self.privacy
        )
        (self.folder / name).write_text(text, encoding="utf-8")

    def write_settings(
        self, role: str, slices: int = 1, shard: bool | None = None, machine: str = ""
    ) -> Path:
        """Write a party's `party.toml`."""
        is_guest = role == "guest"
        model = "" if shard is None else f"shard = {str(shard).lower()}\n"
        text = _PARTY.format(
            role=role,
            bottom=self.bottom,
            device=self.device,
            more=f"{self.more}\nslices = {slices}"
            + (f'\nlisten = "127.0.0.1:{self.port}"' if is_guest else ""),
            model=model + ('top = "wdl"\nloss = "binary"' if is_guest else ""),
            peer="host" if is_guest else "guest",
            peer_more="" if is_guest else f'connect = "127.0.0.1:{self.port}"',
        )
        file = self.folder / f"{role}{machine}" / "party.toml"
        file.write_text(text, encoding="utf-8")
        return file

    def start(
        self,
        role: str,
        out: str,
        ranks: int = 1,
        slices: int = 1,
        job: str = "job.toml",
        env: Mapping[str, str] | None = None,
        restarts: int = 3,
        shard: bool | None = None,
        options: Sequence[str] = (),
        machine: str = "",
        launcher: Sequence[str] = ("--standalone",),
    ) -> Process:
        """Start a party: one process that uses slices, or torchrun with ranks.

        `machine` is added to the name of the party's folder: another machine has a copy.
        """
        own = self.folder / f"{role}{machine}"
        file = self.write_settings(role, slices, shard, machine)
        celu = ["run", str(file), "--job", str(self.folder / job), "--out", str(own / out)]
        celu += options
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        with self.log(f"{role}{machine}", out).open("ab") as log:
            if ranks == 1 and "--standalone" in launcher:
                return CeluProcess(celu, log.fileno(), log.fileno(), variables, own)
            command = [sys.executable, "-m", "torch.distributed.run", *launcher]
            command += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
            command += ["-m", "celu", *celu]
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=own, env=variables)

    def start_machines(
        self, role: str, out: str, copies: Sequence[str], **options: Any
    ) -> list[Process]:
        """Start a party on several machines, as far as torchrun can tell, with a rank on each.

        `copies` has for each what is added to the name of its folder; the first has rank 0.
        """
        port = free_port()
        started = []
        for number, machine in enumerate(copies, start=1):
            launcher = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
            launcher += [f"--nnodes={len(copies)}", f"--local-addr=127.0.0.{number}"]
            more = {**options, "machine": machine, "launcher": launcher}
            started.append(self.start(role, out, **more))
        return started

    def log(self, role: str, out: str) -> Path:
        return self.folder / role / f"{out}.log"

    def train(self, out: str, guest: dict[str, Any], host: dict[str, Any]) -> dict[str, Tensor]:
        """Run both to the end and return all weights; fails with their output."""
        processes = {
            role: self.start(role, out, **options)
            for role, options in (("guest", guest), ("host", host))
        }
        return self.finish(out, processes)

    def finish(self, out: str, processes: Mapping[str, Process]) -> dict[str, Tensor]:
        codes = {role: wait(process) for role, process in processes.items()}
        shown = "\n".join(self.log(role, out).read_text()[-4000:] for role in codes)
        assert set(codes.values()) == {0}, f"{codes}\n{shown}"
        return self.weights(out)

    def weights(self, out: str) -> dict[str, Tensor]:
        return {
            f"{role}.{name}": tensor
            for role in ("guest", "host")
            for name, tensor in load_file(self.folder / role / out / "weights.safetensors").items()
        }

    def events(self, role: str, out: str) -> list[EventDict]:
        return read_events(self.folder / role / out)

    def metrics(self, out: str) -> list[dict[str, float]]:
        """Of each evaluation, and of the test at the end, what does not depend on time."""
        names = ("round", "loss", "auc")
        kinds = ("evaluation", "test")
        found = [e for e in self.events("guest", out) if e["event"] in kinds]
        return [{name: event[name] for name in names} for event in found]

    def wait_for_round(self, role: str, out: str, round_: int) -> None:
        """Wait until a checkpoint of this round or a later one was taken."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            rounds = [e["round"] for e in self.events(role, out) if e["event"] == "checkpoint"]
            if any(number >= round_ for number in rounds):
                return
            time.sleep(0.02)
        raise AssertionError(f"{role} took no checkpoint after round {round_}")


def wait(process: Process) -> int:
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def rank_pids(launcher: Process) -> dict[int, int]:
    """The process ids of the ranks of a torchrun process, by rank (Linux)."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        found = {}
        for pid in children:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            ranks = [int(v[5:]) for v in environment if v.startswith(b"RANK=")]
            found |= {rank: int(pid) for rank in ranks}
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("torchrun started no ranks")


def kill_rank(launcher: Process, rank: int, number: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to a rank, and return its process id."""
    pid = rank_pids(launcher)[rank]
    os.kill(pid, number)
    return pid
