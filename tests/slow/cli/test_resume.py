"""Runs whose processes were killed and started again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from celu.checkpoint.generations import FOLDER
from celu.errors import CheckpointError
from celu.testing import read_events
from cli.pair import DEADLINE_S, Pair, ended, pair_at
from processes import CeluProcess

METHOD = """
[method]
W = 3
R = 3
depth = 4
[checkpoint]
every = 7
"""
# Slow enough that a run can be killed in the middle.
LINK = "link = { mbps = 30, delay_ms = 4 }\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    """A run that was not interrupted."""
    pair = prepared(tmp_path_factory.mktemp("whole"), keys)
    guest, host = pair.run()
    assert (guest.code, host.code) == (0, 0), guest.err + host.err
    return pair.folder


def prepared(folder: Path, keys: Path) -> Pair:
    pair = pair_at(folder, keys)
    pair.edit("job.toml", "rounds = 60", "rounds = 200")
    with (folder / "job.toml").open("a") as job:
        job.write(METHOD)
    for name in ("airline", "weather"):
        path = folder / name / "party.toml"
        path.write_text(LINK + path.read_text())
    return pair


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    return prepared(tmp_path, keys)


@pytest.fixture
def started(pair: Pair) -> Iterator[list[CeluProcess]]:
    """The processes of a run; killed when the test ends."""
    processes = [pair.start("airline"), pair.start("weather")]
    yield processes
    for process in processes:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def wait_for_round(pair: Pair, name: str, round_: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    run = pair.folder / name / "run"
    while not any(e["event"] == "round" and e["round"] >= round_ for e in read_events(run)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_checkpoint(pair: Pair, round_: int) -> None:
    """Until both parties have written a checkpoint of this round or of a later one."""
    deadline = time.monotonic() + DEADLINE_S
    for name in ("airline", "weather"):
        folder = pair.folder / name / "run" / FOLDER
        while not any(int(p.name[-8:]) >= round_ for p in folder.glob("round-*")):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def same_weights(a: Path, b: Path) -> None:
    for name in ("airline", "weather"):
        ours, theirs = (load_file(f / name / "run" / "weights.safetensors") for f in (a, b))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("victims", ["guest", "host", "both"])
def test_a_killed_and_restarted_run_ends_with_the_same_bits(
    pair: Pair, started: list[CeluProcess], whole: Path, victims: str
) -> None:
    names = {"guest": ["airline"], "host": ["weather"], "both": ["airline", "weather"]}[victims]
    parties = dict(zip(("airline", "weather"), started, strict=True))
    wait_for_checkpoint(pair, 35)
    for name in names:
        parties[name].kill()
        parties[name].communicate(timeout=DEADLINE_S)
    for name in names:
        parties[name] = pair.start(name)
        started.append(parties[name])
    for process in parties.values():  # a party that was not killed has restarted by itself
        after = ended(process)
        assert after.code == 0, after.err
        assert "resumes from round" in after.out and "of 200" in after.out
    same_weights(pair.folder, whole)
    events = read_events(pair.folder / "airline" / "run")
    resumed = next(e for e in events if e["event"] == "resumed")
    assert resumed["round"] >= 35
    assert sum(e["event"] in ("attempt", "restart") for e in events) == 2
    last = [e for e in events if e["event"] == "evaluation"][-1]
    expected = read_events(whole / "airline" / "run")
    reference = [e for e in expected if e["event"] == "evaluation"][-1]
    assert (last["auc"], last["loss"]) == (reference["auc"], reference["loss"])


def test_a_finished_run_can_be_started_again_but_not_with_another_contract(
    pair: Pair, started: list[CeluProcess], whole: Path
) -> None:
    for process in started:
        assert ended(process).code == 0
    for guest_or_host in pair.run():
        assert guest_or_host.code == 0
        assert "resumes from round 200 of 200" in guest_or_host.out
    same_weights(pair.folder, whole)
    summary = (pair.folder / "airline" / "run" / "summary.json").read_bytes()
    pair.edit("airline/party.toml", "connect_s = 600", "connect_s = 0.5")
    alone = ended(pair.start("airline"))
    assert alone.code == 0 and "done before, after 200 rounds" in " ".join(alone.out.split())
    assert (pair.folder / "airline" / "run" / "summary.json").read_bytes() == summary
    pair.edit("airline/party.toml", "connect_s = 0.5", "connect_s = 600")
    pair.edit("job.toml", "seed = 1", "seed = 2")
    guest, host = pair.run()
    assert {guest.code, host.code} <= {12, 14} and 14 in (guest.code, host.code)
    assert "seed: the run has 1" in guest.err + host.err
    same_weights(pair.folder, whole)


def test_a_run_folder_in_use_is_refused(pair: Pair) -> None:
    pair.edit(
        "job.toml", "rounds = 200", "rounds = 1000000"
    )  # still running when the second one starts
    processes = [pair.start("airline"), pair.start("weather")]
    try:
        wait_for_round(pair, "airline", 5)
        second = ended(pair.start("airline"))
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=DEADLINE_S)
    assert second.code == 3 and "another process uses" in " ".join(second.err.split())


def test_lost_checkpoints_stop_both_processes_until_their_operators_restart_from_a_round(
    pair: Pair,
) -> None:
    pair.edit("job.toml", "rounds = 200", "rounds = 40")
    guest, host = pair.run()
    assert (guest.code, host.code) == (0, 0), guest.err + host.err
    shutil.rmtree(pair.folder / "airline" / "run" / FOLDER)
    retained = sorted((pair.folder / "weather" / "run" / FOLDER).rglob("*"))
    guest, host = pair.run()
    for end in (guest, host):
        assert end.code == CheckpointError.exit_code, end.err
        said = " ".join(end.err.split())
        assert "airline has no checkpoint" in said and "--restart-from 0" in said
    assert sorted((pair.folder / "weather" / "run" / FOLDER).rglob("*")) == retained
    processes = [pair.start(name, "--restart-from", "0") for name in ("airline", "weather")]
    assert [ended(process).code for process in processes] == [0, 0]


def test_a_damaged_log_and_a_lost_run_json_do_not_block_resuming(
    pair: Pair, started: list[CeluProcess]
) -> None:
    wait_for_checkpoint(pair, 14)
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
    runs = {name: pair.folder / name / "run" for name in ("airline", "weather")}
    log = runs["airline"] / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b'{"t"', b'\xff"t"', 1))
    (runs["weather"] / "run.json").unlink()
    guest, host = pair.run()
    assert (guest.code, host.code) == (0, 0), guest.err + host.err
    for run in runs.values():
        resumed = [e["round"] for e in read_events(run) if e["event"] == "resumed"]
        assert resumed and resumed[-1] >= 14
