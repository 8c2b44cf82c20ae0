"""The parties of `scripts/bench serve`: rows, a trained model, and `celu serve` as processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from celu.config.schema import Split
from celu.config.templates import FLIGHTS, write_settings
from celu.data.store import PARTS, StoreWriter, coded_schema, with_ids
from celu.testing import free_port, make_keys

GUEST, HOST = FLIGHTS.guest, FLIGHTS.host
START_S = 300.0
ROWS = 2000
_COLUMNS = 8
_CODES = 100


def make_files(folder: Path) -> None:
    """Write stores of random rows, train a small model on them, and export it."""
    random = np.random.default_rng(1)
    label = random.integers(0, 2, ROWS).astype(np.float32)
    for name in (GUEST, HOST):
        columns = {f"n{i}": random.normal(size=ROWS).astype(np.float32) for i in range(_COLUMNS)}
        sizes = {f"c{i}": _CODES for i in range(_COLUMNS)}
        codes = {key: random.integers(0, _CODES, ROWS).astype(np.int32) for key in sizes}
        table = pa.table(columns | codes | ({"label": label} if name == GUEST else {}))
        schema = coded_schema(table.column_names, sizes, Split())
        with StoreWriter(folder / name / "store", schema) as store:
            for part in PARTS:
                ids = [f"{part}-{row}" for row in range(ROWS)]
                store.write(part, with_ids(table, ids, Split()))
    make_keys(folder, [GUEST, HOST])
    template = replace(FLIGHTS, rounds=4, evaluate_every=4, batch_size=512)
    write_settings(folder, template, local=True)
    parties = [str(folder / name / "party.toml") for name in (GUEST, HOST)]
    run = folder / "run"
    _celu("simulate", *parties, "--job", str(folder / "job.toml"), "--out", str(run))
    for name, path in ((GUEST, run), (HOST, run / "hosts" / HOST)):
        _celu("export", str(path), "--out", str(folder / name / "models" / "1"))


def _celu(*arguments: str) -> None:
    command = [sys.executable, "-m", "celu.cli.app", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"celu {arguments[0]} failed:\n{done.stdout}{done.stderr}")


@dataclass
class ServingPair:
    """A guest and a host that serve; `http_port` is the guest's."""

    http_port: int
    host: subprocess.Popen[str]

    def pause_host(self) -> None:
        """Let the host answer nothing."""
        self.host.send_signal(signal.SIGSTOP)


@contextmanager
def serving_pair(folder: Path, mode: str, deadline_ms: float) -> Iterator[ServingPair]:
    """Run `celu serve` at both parties until the block ends."""
    label = f"{mode}-{deadline_ms:g}"
    write_settings(folder, FLIGHTS, port=free_port(), local=True)
    for name in (GUEST, HOST):  # files of its own: processes of another pair may still read theirs
        settings = (folder / name / "party.toml").read_text()
        serve = "" if name == HOST else f'listen = "127.0.0.1:0"\ndeadline_ms = {deadline_ms}\n'
        serve = f'[serve]\nfolder = "{label}"\n{serve}\n[data]'
        (folder / name / f"{label}.toml").write_text(settings.replace("[data]", serve))
    contract = folder / f"{mode}.toml"
    contract.write_text(f'guest = "{GUEST}"\nhosts = ["{HOST}"]\nmode = "{mode}"\n')
    processes = []
    try:
        for name in (GUEST, HOST):
            command = [sys.executable, "-m", "celu.cli.app", "serve"]
            command += [str(folder / name / f"{label}.toml"), "--serving", str(contract)]
            command += ["--models", str(folder / name / "models")]
            with (folder / f"{name}-{label}.log").open("w") as log:
                processes.append(
                    subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
                )
            if name == GUEST:
                port = _port(folder / f"{GUEST}-{label}.log")
        yield ServingPair(port, processes[1])
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in processes:
            try:
                process.wait(START_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _port(log: Path) -> int:
    give_up_at = time.monotonic() + START_S
    while time.monotonic() < give_up_at:
        found = re.search(r"at http://127\.0\.0\.1:(\d+)/", log.read_text())
        if found:
            return int(found[1])
        time.sleep(0.1)
    raise RuntimeError(f"the guest did not start within {START_S:g} s:\n{log.read_text()}")
