"""Two parties as processes, each with its own settings, rows and keys."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from celu.config.templates import SettingsTemplate, write_settings
from celu.testing import free_port
from processes import CeluProcess, run_celu
from stores import write_store

# For every wait. No passing test waits this long, even on a busy machine.
DEADLINE_S = 900.0
TINY = SettingsTemplate(
    guest="airline",
    host="weather",
    bottom='{ use = "wdl", embedding_dim = 4, hidden = [8] }',
    top='"wdl"',
    batch_size=64,
    z_width=8,
    rounds=60,
    evaluate_every=20,
)


def celu(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_celu(*arguments, timeout=DEADLINE_S, cwd=cwd)


@dataclass
class Pair:
    """A guest that listens and a host that connects, each with its own files."""

    folder: Path
    port: int

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert old in text, (old, text)
        path.write_text(text.replace(old, new))

    def start(
        self, name: str, *more: str, job: str = "job.toml", command: str = "run"
    ) -> CeluProcess:
        party = self.folder / name / "party.toml"
        return CeluProcess([command, party, "--job", self.folder / job, *more])

    def run(self, host_job: str = "job.toml") -> tuple[Ended, Ended]:
        guest, host = self.start("airline"), self.start("weather", job=host_job)
        return ended(guest), ended(host)


@dataclass
class Ended:
    code: int
    out: str
    err: str


def ended(process: CeluProcess) -> Ended:
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode is not None
    return Ended(process.returncode, out, err)


def pair_at(folder: Path, keys: Path) -> Pair:
    """A pair whose files are in a folder; `keys` holds each party's certificates."""
    random = np.random.default_rng(1)
    rows = 1024
    x, y = random.normal(size=(2, rows, 3)).astype(np.float32)
    ids = random.integers(0, 9, size=rows).astype(np.int32)
    label = (x[:, 0] + y[:, 0] + (ids > 4) > 0.5).astype(np.float32)
    tables = {
        "airline": {"a": x[:, 0], "b": x[:, 1], "label": label},
        "weather": {"c": y[:, 0], "d": y[:, 1]},
    }
    for name, table in tables.items():
        write_store(folder / name / "store", table)
        (folder / name / "certs").symlink_to(keys / name / "certs")
    port = free_port()
    write_settings(folder, TINY, port=port, local=True)
    for name in ("airline", "weather"):
        path = folder / name / "party.toml"
        path.write_text(path.read_text().replace("[peers", "connect_s = 600\n[peers", 1))
    return Pair(folder, port)
