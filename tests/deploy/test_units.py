"""The systemd units and the Slurm scripts in deploy/."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from celu.errors import CheckpointError, ConfigError, PeerFailed, PeerLost, RankLost

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(path.name for path in (DEPLOY / "systemd").iterdir())
SCRIPTS = sorted(path.name for path in (DEPLOY / "slurm").iterdir())
MAX_EXPOSURE = 2.0  # of 10, as systemd-analyze rates a unit without any protection


def unit(name: str, folder: Path) -> Path:
    """A unit as an instance named bank, with a program that exists."""
    text = (DEPLOY / "systemd" / name).read_text().replace("/opt/celu/bin/celu", "/bin/true")
    path = folder / name.replace("@", "@bank")
    path.write_text(text)
    return path


def ran(*command: str | Path) -> str:
    """The output of a command that succeeds."""
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_a_unit_and_rates_it_as_protected(name: str, tmp_path: Path) -> None:
    path = unit(name, tmp_path)
    assert ran("systemd-analyze", "verify", path) == ""
    rated = ran("systemd-analyze", "security", "--offline=yes", path)
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", rated)
    assert found is not None and float(found[1]) <= MAX_EXPOSURE, rated


def test_a_run_restarts_after_what_passes_and_not_after_what_would_only_fail_again() -> None:
    text = (DEPLOY / "systemd" / "celu-run@.service").read_text()
    line = re.search(r"^RestartPreventExitStatus=(.*)$", text, re.M)
    assert line is not None
    stops = set(map(int, line[1].split()))
    assert {error.exit_code for error in (ConfigError, CheckpointError)} <= stops
    assert not {error.exit_code for error in (PeerLost, PeerFailed, RankLost)} & stops
    assert "KillSignal=SIGINT\n" in text and "SuccessExitStatus=130\n" in text


@pytest.mark.parametrize(("ranks", "threads"), [("1", "8"), ("3", "2"), ("16", "1")])
def test_the_ranks_of_a_node_share_its_cpus(tmp_path: Path, ranks: str, threads: str) -> None:
    srun = '#!/bin/sh\necho "$SRUN_CPUS_PER_TASK $OMP_NUM_THREADS"\n'
    for name, text in (("srun", srun), ("scontrol", "#!/bin/sh\necho node\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"JOB_ID": "1", "JOB_NUM_NODES": "1", "JOB_NODELIST": "node", "CPUS_PER_TASK": "8"}
    env = {f"SLURM_{name}": value for name, value in slurm.items()}
    env |= {"RANKS": ranks, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = ["bash", str(DEPLOY / "slurm" / "run.sbatch")]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["8", threads]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_valid(name: str) -> None:
    path = DEPLOY / "slurm" / name
    ran("bash", "-n", path)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed; bash has parsed it")
    ran("shellcheck", path)
