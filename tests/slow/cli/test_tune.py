"""`celu tune` from files to a contract that `celu run` takes."""

from __future__ import annotations

import csv
import signal
import time
from pathlib import Path

import pytest

from celu.config.job import read_job
from celu.record.run import RunRecord
from cli.pair import Pair, celu, pair_at
from processes import CeluProcess

pytest.importorskip("optuna", reason="the extra tune is absent")
SPACE = """
optimizer.lr = { low = 0.003, high = 0.3, log = true }
method.R.guest = [1, 3]
hosts.weather.z_width = [4, 8]
"""


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    pair = pair_at(tmp_path, keys)
    (pair.folder / "space.toml").write_text(SPACE)
    return pair


def arguments(pair: Pair, out: Path, *more: str) -> list[str | Path]:
    parties = [pair.folder / name / "party.toml" for name in ("airline", "weather")]
    files = ["--job", pair.folder / "job.toml", "--space", pair.folder / "space.toml"]
    return ["tune", *parties, *files, "--out", out, *more]


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_best_contract_is_written_and_two_parties_train_with_it(
    pair: Pair, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = celu(*arguments(pair, out, "--trials", "7"))
    assert done.returncode == 0, done.stderr
    trials = rows(out)
    scores = {t["trial"]: float(t["auc"]) for t in trials if t["status"] == "done"}
    best = max(scores, key=lambda number: scores[number])
    assert len(trials) == 7 and f"best: trial {best}, auc" in " ".join(done.stdout.split())
    job = read_job(out / "job.toml")
    (values,) = (t for t in trials if t["trial"] == best)
    assert job.optimizer.lr == float(values["optimizer.lr"])
    assert job.hosts["weather"].z_width == int(values["hosts.weather.z_width"])
    assert (out / "job.toml").read_text().startswith("# The best of 7 trials of celu tune: trial")
    record = RunRecord(out / "trials" / f"{int(best):04}")
    assert record.status == "done" and record.evaluations[-1].metrics["auc"] == scores[best]
    # The same bits as in the trial: over the network, with the written contract.
    (pair.folder / "job.toml").write_text((out / "job.toml").read_text())
    guest, host = pair.run()
    assert guest.code == 0 and host.code == 0, guest.err
    trained = RunRecord(pair.folder / "airline" / "run")
    assert trained.evaluations[-1].metrics["auc"] == scores[best]


def test_a_killed_search_resumes_and_ends_like_one_that_was_not(pair: Pair, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert celu(*arguments(pair, whole, "--trials", "4")).returncode == 0
    process = CeluProcess(arguments(pair, killed, "--trials", "4"))
    until = time.monotonic() + 600
    while not (killed / "trials" / "0001" / "events.jsonl").exists():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    assert len(rows(killed)) < 4
    again = celu(*arguments(pair, killed, "--trials", "4"))
    assert again.returncode == 0 and "resumes after" in again.stdout, again.stderr
    assert rows(killed) == rows(whole)
    assert (killed / "job.toml").read_text() == (whole / "job.toml").read_text()


def test_a_wrong_name_exits_with_code_3_before_anything_is_trained(
    pair: Pair, tmp_path: Path
) -> None:
    (pair.folder / "space.toml").write_text("optimizer.learning_rate = [0.1]")
    done = celu(*arguments(pair, tmp_path / "out"))
    assert done.returncode == 3 and not (tmp_path / "out").exists()
    assert "optimizer.learning_rate: expected no such key" in " ".join(done.stderr.split())
