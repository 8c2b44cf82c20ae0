"""Parties on several machines: torchruns with addresses of their own, on this one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from ranks_parties import Parties, wait

SCRIPT = Path(__file__).parents[3] / "deploy" / "slurm" / "run.sbatch"


def test_two_torchruns_train_together_with_the_bits_of_two_slices(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    slices = parties.train("slices", {"slices": 2}, {"slices": 2})
    running = [
        process
        for role in ("guest", "host")
        for process in parties.start_machines(role, "machines", ["", ""], shard=True)
    ]
    codes = [wait(process) for process in running]
    logs = [parties.log(role, "machines").read_text(encoding="utf-8") for role in ("guest", "host")]
    assert codes == [0] * 4, "\n".join(logs)
    found = parties.weights("machines")
    assert found.keys() == slices.keys()
    assert [name for name in found if not torch.equal(found[name], slices[name])] == []
    for role in ("guest", "host"):
        assert list((tmp_path / role / "machines" / "checkpoints").glob("round-*/shard-1-of-2*"))


@pytest.mark.parametrize("has_own_key", [False, True], ids=["no key", "another key"])
def test_a_machine_with_another_key_of_labels_is_refused_before_the_first_batch(
    tmp_path: Path, has_own_key: bool
) -> None:
    parties = Parties(tmp_path, privacy="label_epsilon = 2.0")
    shutil.copytree(tmp_path / "guest", tmp_path / "guest-2")
    first, second = tmp_path / "guest" / "label.key", tmp_path / "guest-2" / "label.key"
    if has_own_key:
        second.write_text("ab" * 32)
        second.chmod(0o600)
    running = parties.start_machines("guest", "refused", ["", "-2"], restarts=0)
    assert all(wait(process) for process in running)
    log = parties.log("guest", "refused").read_text(encoding="utf-8")
    assert "label.key: expected the key of the first rank at all ranks" in log
    log = parties.log("guest-2", "refused").read_text(encoding="utf-8")
    got = "another" if has_own_key else "none"
    assert f"expected the key of the first rank at rank 1, got {got}; copy the file" in log
    assert first.exists() and second.exists() == has_own_key
    shutil.copy2(first, second)
    again = parties.start_machines("guest", "again", ["", "-2"], restarts=0)
    host = parties.start("host", "again")
    shown = parties.log("guest-2", "again").read_text(encoding="utf-8")
    assert [wait(process) for process in (*again, host)] == [0, 0, 0], shown
    assert not (tmp_path / "guest-2" / "again").exists()  # only rank 0 writes a run folder


def test_a_machine_with_another_store_is_refused_at_all_ranks(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    parties.write_rows("guest", "-2", flipped=True)
    running = parties.start_machines("guest", "refused", ["", "-2"], restarts=0)
    assert all(wait(process) for process in running)
    for machine in ("", "-2"):
        log = parties.log(f"guest{machine}", "refused").read_text(encoding="utf-8")
        assert "guest-2/store: expected the store of the first rank at rank 1, got another" in log
        assert "the labels of train rows differ" in log


SRUN = """#!/bin/sh
# Runs a command on each node, as far as it can tell: the options come first.
test "$1" = --kill-on-bad-exit=1 || exit 2
shift
for node in 127.0.0.1 127.0.0.2; do
  SLURMD_NODENAME=$node "$@" &
  all="$all $!"
done
for one in $all; do wait "$one" || failed=1; done
exit "${failed:-0}"
"""
SCONTROL = """#!/bin/sh
test "$*" = "show hostnames 127.0.0.[1-2]" && echo 127.0.0.2 && echo 127.0.0.1
"""


def test_the_script_for_slurm_trains_on_two_nodes(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    slices = parties.train("runs", {"slices": 2}, {})
    shutil.rmtree(tmp_path / "guest" / "runs")
    shutil.rmtree(tmp_path / "host" / "runs")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    slurm = {
        "SLURM_JOB_ID": str(free_job()),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "127.0.0.[1-2]",
        "RANKS": "1",
        "PARTY": str(parties.write_settings("guest", shard=True)),
        "JOB": str(tmp_path / "job.toml"),
        "PATH": os.pathsep.join(path),
    }
    with parties.log("guest", "runs").open("ab") as log:
        script = subprocess.Popen(
            ["bash", str(SCRIPT)],
            stdout=log,
            stderr=log,
            cwd=tmp_path / "guest",
            env={**os.environ, "OMP_NUM_THREADS": "1", **slurm},
        )
    host = parties.start("host", "runs")
    shown = parties.log("guest", "runs")
    assert [wait(process) for process in (script, host)] == [0, 0], shown.read_text()[-5000:]
    found = parties.weights("runs")
    assert [name for name in slices if not torch.equal(found[name], slices[name])] == []
    assert list((tmp_path / "guest" / "runs" / "checkpoints").glob("round-*/shard-1-of-2*"))


def free_job() -> int:
    """The number of a job whose port nobody uses; see the script."""
    for port in range(20_000, 40_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port - 20_000
    raise AssertionError("every port is in use")
