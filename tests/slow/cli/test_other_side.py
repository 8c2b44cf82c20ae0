"""The line that a listening party prints is one that the other party can run as it is."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from cli.pair import DEADLINE_S, Pair, ended, pair_at
from processes import CeluProcess
from slow.cli.test_more import run
from stores import write_store


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    """The host learns where the guest listens from the printed line only."""
    pair = pair_at(tmp_path, keys)
    (pair.folder / "job.toml").rename(pair.folder / "the job.toml")
    pair.edit("weather/party.toml", f'connect = "localhost:{pair.port}"', "")
    pair.edit("weather/party.toml", "threads = 1", 'threads = 1\nlisten = "127.0.0.1:1"')
    return pair


def invited(process: CeluProcess) -> str:
    """The line for the host, without the spaces and the name before it."""
    assert process.stdout is not None
    while "--connect" not in (line := process.stdout.readline()):
        assert line, f"it ended without saying where it listens: {ended(process)}"
    return line.strip().removeprefix("weather:").strip()


def run_line(pair: Pair, line: str) -> CeluProcess:
    """Run a printed line as the host does: in the folder of its party.toml."""
    program, *arguments = shlex.split(line)
    assert program == "celu"
    return CeluProcess(arguments, cwd=pair.folder / "weather")


def finish(pair: Pair, guest: CeluProcess) -> str:
    """Run the printed line at the host until both parties end; returns the line."""
    line = invited(guest)
    host = ended(run_line(pair, line))
    assert host.code == 0, host.err
    assert ended(guest).code == 0
    return line


def test_run_prints_what_both_parties_must_pass(pair: Pair) -> None:
    job = "the job.toml"
    line = finish(pair, pair.start("airline", job=job))
    assert "--job '" in line and "--more" not in line and "--restart-from" not in line
    assert " --more 20 --connect " in finish(pair, pair.start("airline", "--more", "20", job=job))
    line = finish(pair, pair.start("airline", "--restart-from", "0", job=job))
    assert " --restart-from 0 --connect " in line


def test_align_prints_what_both_parties_must_pass(pair: Pair) -> None:
    for name in ("airline", "weather"):
        pair.edit(f"{name}/party.toml", "aligned = true", 'alignment = "common"')
    line = finish(pair, pair.start("airline", command="align", job="the job.toml"))
    assert line.startswith("celu align party.toml --job '")
    shard = ["--shard", "0/1"]
    line = finish(pair, pair.start("airline", *shard, command="align", job="the job.toml"))
    assert " --shard 0/1 --connect " in line
    more = ["--store", str(pair.folder / "airline" / "store"), "--out", str(pair.folder / "new")]
    guest = pair.start("airline", *more, command="align", job="the job.toml")
    assert " --store STORE --out ALIGNMENT --connect " in invited(guest)
    guest.kill()
    guest.communicate(DEADLINE_S)


@pytest.mark.parametrize("command", ["predict", "serve"])
def test_predict_and_serve_print_the_contract_and_the_options_that_were_given(
    pair: Pair, command: str
) -> None:
    guest = run_in_one_process(pair)
    serving = pair.folder / "our serving.toml"
    serving.write_text('guest = "airline"\nhosts = ["weather"]\n')
    models = pair.folder / "models"
    exported = CeluProcess(["export", guest, "--out", models / "first"])
    assert ended(exported).code == 0
    given = ["--serving", serving, "--store", pair.folder / "airline" / "store", "--aligned"]
    if command == "predict":
        given += ["--model", models / "first", "--out", pair.folder / "scores.parquet"]
    else:
        given += ["--models", models]
        path = pair.folder / "airline" / "party.toml"
        path.write_text(path.read_text() + '\n[serve]\nlisten = "127.0.0.1:0"\n')
    process = CeluProcess([command, pair.folder / "airline" / "party.toml", *given])
    line = invited(process)
    process.kill()
    process.communicate(DEADLINE_S)
    model = "--model MODEL" if command == "predict" else "--models MODELS"
    assert f"--serving '{serving}' {model} --store STORE --aligned --connect airline=" in line


def run_in_one_process(pair: Pair) -> Path:
    """The guest's run folder, after a simulation."""
    out = pair.folder / "simulated"
    files = [pair.folder / name / "party.toml" for name in ("airline", "weather")]
    job = pair.folder / "the job.toml"
    done = ended(CeluProcess(["simulate", *files, "--job", job, "--out", out]))
    assert done.code == 0, done.err
    return out


def test_stores_with_other_split_seeds_and_without_alignment_name_the_schema(
    tmp_path: Path, keys: Path
) -> None:
    pair = pair_at(tmp_path, keys)
    shutil.rmtree(pair.folder / "weather" / "store")
    y = np.random.default_rng(3).normal(size=(2, 1024)).astype(np.float32)
    write_store(pair.folder / "weather" / "store", {"c": y[0], "d": y[1]}, seed=2)
    for code, text in run(pair):
        assert code == 7, text
        plain = re.sub(r"\s+", " ", text)
        assert "train_ids" in plain and 'for "aligned = true" in party.toml' in plain
        assert "the same [split] in schema.toml (seed, test, validation)" in plain
