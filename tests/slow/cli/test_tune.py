"""`celu tune` from files to a contract that `celu run` takes."""

from __future__ import annotations

import csv
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from celu.config.job import read_job
from celu.record.run import RunRecord
from cli.pair import Pair, celu, pair_at
from processes import CeluProcess
from stores import write_store

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


def test_trials_start_from_the_weights_that_party_toml_names(pair: Pair, tmp_path: Path) -> None:
    parties = [pair.folder / name / "party.toml" for name in ("airline", "weather")]
    job = ["--job", pair.folder / "job.toml"]
    assert celu("simulate", *parties, *job, "--out", tmp_path / "run").returncode == 0
    (pair.folder / "space.toml").write_text("optimizer.lr = [1e-9]\nhosts.weather.z_width=[8, 4]")
    cold = celu(*arguments(pair, tmp_path / "cold", "--trials", "1"))
    assert cold.returncode == 0, cold.stderr
    for path, run in zip(parties, ("run", "run/hosts/weather"), strict=True):
        path.write_text(f'start = "{tmp_path / run}"\n' + path.read_text())
    done = celu(*arguments(pair, tmp_path / "warm", "--trials", "6"))
    assert done.returncode == 0, done.stderr
    trained = RunRecord(tmp_path / "run").evaluations[-1].metrics["auc"]
    scores = {t["hosts.weather.z_width"]: t["auc"] for t in rows(tmp_path / "warm")}
    assert float(scores["8"]) == pytest.approx(trained, abs=1e-4)
    assert float(rows(tmp_path / "cold")[0]["auc"]) < trained - 0.05
    assert scores["4"] == ""  # the weights do not fit
    other = celu(*arguments(pair, tmp_path / "cold", "--trials", "2"))
    assert other.returncode == 3 and "another start" in " ".join(other.stderr.split())


def with_validation_rows(pair: Pair, num_rows: int) -> None:
    x = np.random.default_rng(2).normal(size=(2, 1024)).astype(np.float32)
    label = (x.sum(axis=0) > 0).astype(np.float32)
    for name, columns in {"airline": {"a": x[0], "label": label}, "weather": {"c": x[1]}}.items():
        path = pair.folder / name / "store"
        shutil.rmtree(path)
        part = {column: values[:num_rows] for column, values in columns.items()}
        write_store(path, columns, validation=part)


def test_a_search_on_test_rows_is_a_warning_with_the_next_step(pair: Pair, tmp_path: Path) -> None:
    warning = "test rows choose the best trial, and its score on them is too good"
    done = celu(*arguments(pair, tmp_path / "one", "--trials", "1"))
    assert warning in " ".join(done.stdout.split())
    assert "set [split] validation = 0.1 in schema.toml at all parties" in done.stdout
    with_validation_rows(pair, 200)
    done = celu(*arguments(pair, tmp_path / "two", "--trials", "1"))
    assert done.returncode == 0 and warning not in " ".join(done.stdout.split())
    with_validation_rows(pair, 100)
    other = celu(*arguments(pair, tmp_path / "two", "--trials", "2"))
    assert other.returncode == 3 and "another rows" in " ".join(other.stderr.split())


def test_a_wrong_name_exits_with_code_3_before_anything_is_trained(
    pair: Pair, tmp_path: Path
) -> None:
    (pair.folder / "space.toml").write_text("optimizer.learning_rate = [0.1]")
    done = celu(*arguments(pair, tmp_path / "out"))
    assert done.returncode == 3 and not (tmp_path / "out").exists()
    assert "optimizer.learning_rate: expected no such key" in " ".join(done.stderr.split())


def test_a_trial_that_cannot_be_trained_has_no_score_and_the_search_goes_on(
    pair: Pair, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (pair.folder / "space.toml").write_text("batch_size = [64, 4096]\nmethod.R.guest = [1, 2, 3]\n")
    done = celu(*arguments(pair, out, "--trials", "5"))
    assert done.returncode == 0, done.stderr
    made = rows(out)
    assert {t["batch_size"] for t in made} == {"64", "4096"} and len(made) == 5
    for trial in made:
        if trial["batch_size"] == "4096":
            assert trial["auc"] == ""
            assert "expected at least one batch of 4096 training rows" in trial["status"]
        else:
            assert trial["status"] == "done"
    assert read_job(out / "job.toml").batch_size == 64


def test_the_best_contract_so_far_is_there_while_the_search_goes_on(
    pair: Pair, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = CeluProcess(arguments(pair, out, "--trials", "50", "--no-prune"))
    until = time.monotonic() + 600
    while not (out / "trials" / "0002").exists():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    assert (out / "job.toml").read_text().startswith("# The best of 2 trials of celu tune: trial")
