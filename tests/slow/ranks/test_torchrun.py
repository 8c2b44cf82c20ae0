"""Parties of several ranks, as real processes that torchrun starts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ranks_parties import Parties, kill_rank, wait

RANKS = {"1-2": (1, 2), "2-1": (2, 1), "1-4": (1, 4)}
# A bottom with dropout, whose Z is NaN at rank 1 from a certain use on, if it is asked for.
OWN = """
import os
import torch
from torch import nn

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
            z = z * float("nan")
        return self.dropout(z)
"""


def own_model(parties: Parties) -> None:
    """Let both parties use the bottom above."""
    parties.bottom = '"own_bottom:Bottom"'
    for role in ("guest", "host"):
        (parties.folder / role / "own_bottom.py").write_text(OWN, encoding="utf-8")


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_two_ranks_at_both_parties_have_the_bits_of_two_slices_twice(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    own_model(parties)
    slices = parties.train("slices", {"slices": 2}, {"slices": 2})
    for attempt in ("first", "second"):
        ranks = parties.train(attempt, {"ranks": 2}, {"ranks": 2})
        assert_same_bits(ranks, slices)
        assert parties.metrics(attempt) == parties.metrics("slices")


@pytest.mark.parametrize(("guest", "host"), RANKS.values(), ids=RANKS.keys())
def test_a_peer_cannot_tell_ranks_from_slices(tmp_path: Path, guest: int, host: int) -> None:
    parties = Parties(tmp_path, rounds=10, codec="int8")
    slices = parties.train("slices", {"slices": guest}, {"slices": host})
    assert_same_bits(parties.train("ranks", {"ranks": guest}, {"ranks": host}), slices)


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
    (one,), (ranks,) = parties.metrics("one"), parties.metrics("ranks")
    assert ranks["auc"] == pytest.approx(one["auc"], abs=1e-6)
    assert ranks["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_a_killed_rank_restarts_its_party_and_the_bits_are_undisturbed(tmp_path: Path) -> None:
    parties = Parties(tmp_path, rounds=200)
    undisturbed = parties.train("undisturbed", {}, {"slices": 2})
    options: dict[str, dict[str, Any]] = {"guest": {}, "host": {"ranks": 2}}
    running = {role: parties.start(role, "killed", **o) for role, o in options.items()}
    parties.wait_for_round("host", "killed", 10)
    kill_rank(running["host"], 1)
    assert_same_bits(parties.finish("killed", running), undisturbed)
    attempts = [e for e in parties.events("host", "killed") if e["event"] == "attempt"]
    assert len(attempts) > 1


@pytest.mark.parametrize("role", ["guest", "host"])
def test_nan_at_one_rank_is_exit_code_10_at_all(tmp_path: Path, role: str) -> None:
    parties = Parties(tmp_path)
    own_model(parties)
    running = {
        name: parties.start(
            name,
            "nan",
            ranks=2 if name == role else 1,
            env={"BREAK_RANK": "1"} if name == role else {},
        )
        for name in ("guest", "host")
    }
    codes = {name: wait(process) for name, process in running.items()}
    log = parties.log(role, "nan").read_text(encoding="utf-8")
    found = set(re.findall(r"exitcode ?: (-?\d+)", log))
    assert found == {"10"}, log  # of all ranks, and after each restart
    assert "before torchrun restarted it" in log
    peer = "host" if role == "guest" else "guest"
    assert codes[peer] == 12
    summary = json.loads((tmp_path / role / "nan" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "NonFiniteError"


def test_auto_chooses_for_all_ranks_and_its_choices_replay(tmp_path: Path) -> None:
    parties = Parties(tmp_path, rounds=40, method="auto = true")
    chosen = parties.train("auto", {"ranks": 2}, {"ranks": 2})
    replay = (tmp_path / "guest" / "auto" / "replay.toml").read_text(encoding="utf-8")
    (tmp_path / "replay.toml").write_text(replay, encoding="utf-8")
    again = {"job": "replay.toml"}
    assert_same_bits(parties.train("again", {"slices": 2, **again}, {"ranks": 2, **again}), chosen)


def test_a_run_of_two_ranks_resumes_in_one_process_and_says_that_bits_differ(
    tmp_path: Path,
) -> None:
    parties = Parties(tmp_path, rounds=400)
    running = {role: parties.start(role, "run", ranks=2) for role in ("guest", "host")}
    parties.wait_for_round("guest", "run", 10)
    for process in running.values():
        process.terminate()
    for process in running.values():
        wait(process)
    parties.train("run", {}, {})
    for role in ("guest", "host"):
        events = parties.events(role, "run")
        assert any(e["event"] == "resumed" for e in events)
        warnings = [e["message"] for e in events if e["event"] == "warning"]
        assert any("2 slices of a batch, and resumes in 1" in message for message in warnings)
