"""A party that begins again by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import celu
from celu.config.party import read_party
from celu.errors import PeerRestarted
from celu.events import RoundDone
from celu.handshake import report_failure
from celu.launch import training
from celu.run_folder import RunFolder
from celu.testing import read_events
from celu.transport.link import run_blocking
from celu.transport.memory import memory_links
from celu.transport.message import Kind, Message
from stores import write_store

PARTY = """
role = "guest"
name = "guest"
[data]
store = "store"
aligned = true
[model]
bottom = { use = "wdl", hidden = [4] }
top = "wdl"
loss = "binary"
"""


def test_where_a_peer_was_started_anew_a_party_begins_again_from_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(256, 2)).astype(np.float32)
    table = {"a": x[:, 0], "b": x[:, 1], "label": (x[:, 0] > 0).astype(np.float32)}
    write_store(tmp_path / "store", table)
    (tmp_path / "party.toml").write_text(PARTY)
    settings = read_party(tmp_path / "party.toml")
    job = celu.Job(rounds=12, batch_size=32, hosts={}, checkpoint=celu.Checkpoint(every=4))

    def run(name: str) -> dict[str, torch.Tensor]:
        folder = RunFolder(tmp_path / name, {}, resume=True)
        result = training.run_party(settings, job, tmp_path, folder, lambda port: None)
        assert result.rounds == 12
        return load_file(tmp_path / name / "weights.safetensors")

    expected = run("whole")
    once: list[int] = []
    session = training.guest_session

    def interrupted(*arguments: Any, **more: Any) -> Any:
        """The peer's process goes away in round 7, once."""
        emit = arguments[4]

        def stop(event: celu.Event) -> None:
            emit(event)
            if isinstance(event, RoundDone) and event.round == 7 and not once:
                once.append(1)
                raise PeerRestarted("host was started anew")

        return session(*arguments[:4], stop, **more)

    monkeypatch.setattr(training, "guest_session", interrupted)
    weights = run("torn")
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    events = read_events(tmp_path / "torn")
    assert next(e for e in events if e["event"] == "restart")["message"] == "host was started anew"
    assert next(e for e in events if e["event"] == "resumed")["round"] == 4


def test_a_peer_that_did_not_restart_is_left_to_find_out_not_told_to_stop() -> None:
    ours, theirs = memory_links("guest", "host")
    run_blocking(ours.send(Message(Kind.GOODBYE)))
    run_blocking(report_failure({"host": ours}, PeerRestarted("another was started anew")))
    assert run_blocking(theirs.receive()).kind is Kind.GOODBYE
    assert not theirs._incoming.queue and theirs._incoming.closed
