"""Parties of several ranks, as real processes that torchrun starts."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from celu.serving.export import export_run
from ranks_parties import TIMEOUT_S, Parties, kill_rank, wait

RANKS = {"1-2": (1, 2), "2-1": (2, 1), "1-4": (1, 4)}
PRIVATE = "label_epsilon = 2.0"  # the guest has a twin
# A bottom with dropout, whose Z is NaN at rank 1 from a certain use on, if it is asked for.
OWN = """
import os
import torch
from torch import nn
from celu.engine.host_trainer import HostTrainer

def unexpected(*_):  # not an error of the model, which celu names
    raise KeyError("a value of a row")

class Bottom(nn.Module):
    def __init__(self, z_width, columns, sizes):
        super().__init__()
        self.embedding = nn.Embedding(sizes["ids"][0], 4, sparse=True)
        self.layer = nn.Linear(5, z_width)
        self.dropout = nn.Dropout(0.2)
        self.uses = 0

    def forward(self, numbers, ids):
        self.uses += 1
        z = self.layer(torch.cat([numbers, self.embedding(ids[:, 0])], dim=1))
        if os.environ.get("BREAK_RANK") == os.environ.get("RANK", "none") and self.uses > 8:
            if "UNEXPECTED" in os.environ:
                HostTrainer.update = unexpected
            else:
                z = z * float("nan")
        return self.dropout(z)
"""


def own_model(parties: Parties) -> None:
    """Let both parties use the bottom above."""
    parties.bottom = '"own_bottom:Bottom"'
    for role in ("guest", "host"):
        (parties.folder / role / "own_bottom.py").write_text(OWN, encoding="utf-8")


def of(weights: dict[str, Tensor], role: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if name.startswith(f"{role}.")}


def is_sharded(parties: Parties, role: str, out: str) -> bool:
    """Whether checkpoints have a file of each rank."""
    return any((parties.folder / role / out / "checkpoints").glob("round-*/shard-1-of-*"))


def files(parties: Parties, role: str, out: str) -> set[str]:
    """The files of a run folder, without the shards of its checkpoints."""
    folder = parties.folder / role / out
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    return {name for name in found if not re.search(r"/shard-\d+-of-", name)}


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_two_ranks_at_both_parties_have_the_bits_of_two_slices_twice(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    own_model(parties)
    slices = parties.train("slices", {"slices": 2}, {"slices": 2})
    for attempt, shard in (("whole", False), ("sharded", True), ("again", True)):
        options = {"ranks": 2, "shard": shard}
        assert_same_bits(parties.train(attempt, options, options), slices)
        assert parties.metrics(attempt) == parties.metrics("slices")
        assert [is_sharded(parties, role, attempt) for role in ("guest", "host")] == [shard] * 2
        for role in ("guest", "host"):  # other ranks write nothing but their shards
            assert files(parties, role, attempt) == files(parties, role, "slices")
    for role in ("guest", "host"):
        export_run(tmp_path / role / "sharded", tmp_path / role / "exported")
        exported = load_file(tmp_path / role / "exported" / "weights.safetensors")
        assert_same_bits({f"{role}.{n}": t for n, t in exported.items()}, of(slices, role))


@pytest.mark.parametrize(("guest", "host"), RANKS.values(), ids=RANKS.keys())
def test_a_peer_cannot_tell_ranks_from_slices(tmp_path: Path, guest: int, host: int) -> None:
    parties = Parties(tmp_path, rounds=10, codec="int8")
    slices = parties.train("slices", {"slices": guest}, {"slices": host})
    ranks = {
        role: {"ranks": number, "shard": True if number > 1 else None}
        for role, number in (("guest", guest), ("host", host))
    }
    assert_same_bits(parties.train("ranks", **ranks), slices)
    assert parties.metrics("ranks") == parties.metrics("slices")


def test_noise_is_added_once_to_a_whole_batch_whatever_the_ranks(tmp_path: Path) -> None:
    noise = (
        "z_noise = { clip = 0.5, noise_multiplier = 1.0 }\n"
        'dz_noise = { name = "marvell", power = 4.0 }'
    )
    parties = Parties(tmp_path, rounds=10, privacy=noise)
    slices = parties.train("slices", {"slices": 2}, {"slices": 2})
    assert_same_bits(parties.train("ranks", {"ranks": 2}, {"ranks": 2}), slices)
    for role in ("guest", "host"):
        assert (tmp_path / role / "noise.key").stat().st_mode & 0o777 == 0o600


def test_the_auc_of_ranks_is_that_of_one_process(tmp_path: Path) -> None:
    parties = Parties(tmp_path, rounds=10)
    parties.train("one", {}, {})
    parties.train("ranks", {"ranks": 2}, {})
    one, ranks = parties.metrics("one"), parties.metrics("ranks")
    assert len(one) == len(ranks) == 2  # of validation rows, and of test rows
    for found, expected in zip(ranks, one, strict=True):
        assert found["auc"] == pytest.approx(expected["auc"], abs=1e-6)
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("guest", "rank", "number"),
    [(1, 1, signal.SIGSTOP), (2, 0, signal.SIGKILL)],
    ids=["1-2, rank 1 is silent", "2-2, rank 0 is killed"],
)
def test_a_lost_rank_restarts_its_party_and_the_bits_are_undisturbed(
    tmp_path: Path, guest: int, rank: int, number: signal.Signals
) -> None:
    parties = Parties(tmp_path, rounds=200)
    undisturbed = parties.train("undisturbed", {"slices": guest}, {"slices": 2})
    options = {role: {"ranks": n, "shard": True} for role, n in (("guest", guest), ("host", 2))}
    options["guest"]["shard"] = True if guest > 1 else None
    parties.more = "deadline_s = 20"
    running = {role: parties.start(role, "killed", **o) for role, o in options.items()}
    parties.wait_for_round("host", "killed", 10)
    lost = kill_rank(running["host"], rank, number)
    if number == signal.SIGSTOP:
        wait_for_log(parties, "rank 1 has been silent for 10 s, half of deadline_s")
        os.kill(lost, signal.SIGKILL)  # as torchrun does after 30 s
    assert_same_bits(parties.finish("killed", running), undisturbed)
    attempts = [e for e in parties.events("host", "killed") if e["event"] == "attempt"]
    assert len(attempts) > 1
    # The peer is not restarted: it starts over by itself, at all its ranks.
    assert [e["event"] for e in parties.events("guest", "killed")].count("attempt") <= 1
    assert any(e["event"] == "restart" for e in parties.events("guest", "killed"))


def wait_for_log(parties: Parties, text: str) -> None:
    """Wait until the host says this."""
    deadline = time.monotonic() + TIMEOUT_S
    while text not in parties.log("host", "killed").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_option_for_one_start_applies_once_although_torchrun_restarts(tmp_path: Path) -> None:
    parties = Parties(tmp_path, rounds=200)
    undisturbed = parties.train("undisturbed", {}, {"slices": 2})
    sharded = {"ranks": 2, "shard": True}
    stopped(parties, 40, {}, sharded)
    newest = max(e["round"] for e in parties.events("host", "run") if e["event"] == "checkpoint")
    disturbed(parties, ["--restart-from", "0"], newest + 20)
    assert_same_bits(parties.weights("run"), undisturbed)
    messages = [e["message"] for e in parties.events("host", "run") if e["event"] == "warning"]
    assert sum("given up on request" in message for message in messages) == 1
    resumed = [e["round"] for e in parties.events("host", "run") if e["event"] == "resumed"]
    assert resumed[-1] > newest
    disturbed(parties, ["--more", "200"], 240)
    for role in ("guest", "host"):
        summary = json.loads((tmp_path / role / "run" / "summary.json").read_text("utf-8"))
        assert summary["rounds"] == 400


def disturbed(parties: Parties, options: list[str], round_: int) -> None:
    """Run both with an option to the end; a rank of the host is killed after this round."""
    host = parties.start("host", "run", ranks=2, shard=True, options=options)
    running = {"guest": parties.start("guest", "run", options=options), "host": host}
    parties.wait_for_round("host", "run", round_)
    kill_rank(host, 1)
    parties.finish("run", running)


@pytest.mark.parametrize("role", ["guest", "host"])
def test_an_interrupt_stops_all_ranks_at_the_next_checkpoint(tmp_path: Path, role: str) -> None:
    parties = Parties(tmp_path, rounds=300)
    options = {r: {"ranks": 2, "shard": True} if r == role else {} for r in ("guest", "host")}
    undisturbed = parties.train(
        "undisturbed", **{r: {"slices": len(o) or 1} for r, o in options.items()}
    )
    env = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "900"}
    running = {r: parties.start(r, "run", **o, env=env) for r, o in options.items()}
    parties.wait_for_round(role, "run", 10)
    running[role].send_signal(signal.SIGINT)
    assert wait(running[role]) != 0
    assert wait(running["host" if role == "guest" else "guest"]) == 12
    log = parties.log(role, "run").read_text(encoding="utf-8")
    assert log.count("interrupted; start the same command again") == 2, log  # at both ranks
    (stopped_after,) = re.findall(r"stopping after round (\d+)", log)
    assert_same_bits(parties.train("run", **options), undisturbed)
    resumed = [e["round"] for e in parties.events(role, "run") if e["event"] == "resumed"]
    assert resumed == [int(stopped_after)]


def broken(parties: Parties, role: str, restarts: int, **env: str) -> dict[str, int]:
    """Run both, while rank 1 of a party breaks; returns the exit codes of both."""
    own_model(parties)
    broken = {"ranks": 2, "shard": True, "restarts": restarts, "env": {"BREAK_RANK": "1", **env}}
    running = {
        name: parties.start(name, "broken", **(broken if name == role else {}))
        for name in ("guest", "host")
    }
    return {name: wait(process) for name, process in running.items()}


def exit_codes(log: str) -> set[tuple[str, str]]:
    """The ranks whose exit codes torchrun reports at its end, with them: all that failed."""
    return set(re.findall(r"rank +: (\d+) \(local_rank.*\n +exitcode +: (-?\d+)", log))


@pytest.mark.parametrize("role", ["guest", "host"])
def test_nan_at_one_rank_is_exit_code_10_at_all(tmp_path: Path, role: str) -> None:
    parties = Parties(tmp_path)
    codes = broken(parties, role, restarts=0)
    log = parties.log(role, "broken").read_text(encoding="utf-8")
    assert exit_codes(log) == {("0", "10"), ("1", "10")}, log
    assert codes["host" if role == "guest" else "guest"] == 12
    summary = json.loads((tmp_path / role / "broken" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "NonFiniteError"


@pytest.mark.parametrize(
    ("env", "code", "text"),
    [({}, "10", "holds NaN or Inf"), ({"UNEXPECTED": "1"}, "1", "rank 1 ended with KeyError")],
    ids=["NaN", "an unexpected error"],
)
def test_a_restart_after_an_error_ends_at_once_with_the_same(
    tmp_path: Path, env: dict[str, str], code: str, text: str
) -> None:
    parties = Parties(tmp_path)
    codes = broken(parties, "host", restarts=2, **env)
    log = parties.log("host", "broken").read_text(encoding="utf-8")
    # torchrun ends a rank with SIGTERM if it has not ended when another one has.
    found = {number for _, number in exit_codes(log)}
    assert code in found <= {code, "-15"}, log
    assert codes["guest"] == 12
    assert "before torchrun restarted it, the run ended with" in log
    attempts = [e for e in parties.events("host", "broken") if e["event"] == "attempt"]
    assert len(attempts) <= 1  # no other attempt opened the run
    summary = json.loads((tmp_path / "host" / "broken" / "summary.json").read_text("utf-8"))
    assert text in summary["message"]
    assert "a value of a row" not in summary["message"]


def test_auto_chooses_for_all_ranks_and_its_choices_replay(tmp_path: Path) -> None:
    parties = Parties(tmp_path, rounds=40, method="auto = true")
    sharded = {"ranks": 2, "shard": True}
    chosen = parties.train("auto", sharded, sharded)
    replay = (tmp_path / "guest" / "auto" / "replay.toml").read_text(encoding="utf-8")
    (tmp_path / "replay.toml").write_text(replay, encoding="utf-8")
    again = {"job": "replay.toml"}
    assert_same_bits(parties.train("again", {"slices": 2, **again}, {"ranks": 2, **again}), chosen)


def test_a_run_resumes_with_any_number_of_ranks_and_says_that_bits_differ(tmp_path: Path) -> None:
    parties = Parties(tmp_path, rounds=400)
    sharded = {"ranks": 2, "shard": True}
    stopped(parties, 10, {"ranks": 4, "shard": True}, {})
    stopped(parties, 20, sharded, sharded)
    parties.train("run", {}, {})
    expected = {"guest": ["4 slices of a batch, and resumes in 2"]}
    expected["host"] = ["1 slices of a batch, and resumes in 2"]
    for role in ("guest", "host"):
        events = parties.events(role, "run")
        assert sum(e["event"] == "resumed" for e in events) == 2
        warnings = [e["message"] for e in events if e["event"] == "warning"]
        for text in [*expected[role], "2 slices of a batch, and resumes in 1"]:
            assert any(text in message for message in warnings)


def test_a_run_has_the_same_bits_however_tables_are_stored_when_it_resumes(tmp_path: Path) -> None:
    parties = Parties(tmp_path, rounds=60, privacy=PRIVATE)
    undisturbed = parties.train("slices", {"slices": 2}, {"slices": 2})
    whole, sharded = ({"ranks": 2, "shard": shard} for shard in (False, True))
    stopped(parties, 10, whole, sharded)
    assert_same_bits(parties.train("run", sharded, whole), undisturbed)
    assert parties.metrics("run")[-1] == parties.metrics("slices")[-1]
    assert is_sharded(parties, "guest", "run")


def stopped(parties: Parties, round_: int, guest: dict[str, Any], host: dict[str, Any]) -> None:
    """Run both until a checkpoint of this round or a later one, and end them."""
    options = {"guest": guest, "host": host}
    running = {role: parties.start(role, "run", **own) for role, own in options.items()}
    for role in options:
        parties.wait_for_round(role, "run", round_)
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    for process in running.values():
        wait(process)
