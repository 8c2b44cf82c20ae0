"""A party starts over by itself when a peer restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import celu
from celu.config.party import read_party
from celu.errors import PeerLost, PeerRestarted
from celu.events import RoundDone
from celu.handshake import report_failure
from celu.launch import restarts, training
from celu.run_folder import RunFolder
from celu.testing import read_events
from celu.transport.link import run_blocking
from celu.transport.memory import memory_links
from celu.transport.message import Kind, Message
from federation import federation
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


def test_a_party_resumes_from_its_checkpoints_when_a_peer_restarts(
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
    restarts: list[int] = []
    session = training.guest_session

    def interrupted(*arguments: Any, **more: Any) -> Any:
        """The peer's process restarts in round 7, once."""
        emit = arguments[4]

        def stop(event: celu.Event) -> None:
            emit(event)
            if isinstance(event, RoundDone) and event.round == 7 and not restarts:
                restarts.append(1)
                raise PeerRestarted("host restarted")

        return session(*arguments[:4], stop, **more)

    monkeypatch.setattr(training, "guest_session", interrupted)
    weights = run("interrupted")
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    events = read_events(tmp_path / "interrupted")
    assert next(e for e in events if e["event"] == "restart")["message"] == "host restarted"
    assert next(e for e in events if e["event"] == "resumed")["round"] == 4


def test_after_a_restart_links_are_closed_without_a_failure_report() -> None:
    ours, theirs = memory_links("guest", "host")
    run_blocking(ours.send(Message(Kind.GOODBYE)))
    run_blocking(report_failure({"host": ours}, PeerRestarted("another host restarted")))
    assert run_blocking(theirs.receive()).kind is Kind.GOODBYE
    assert not theirs._incoming.queue and theirs._incoming.closed


@pytest.mark.parametrize("progress", [False, True])
def test_a_peer_that_restarts_without_end_ends_the_run_unless_it_progresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: bool
) -> None:
    monkeypatch.setattr(restarts, "MAX_RESTARTS", 5)
    (tmp_path / "party.toml").write_text(PARTY)
    settings = read_party(tmp_path / "party.toml")
    job = celu.Job(rounds=12, batch_size=32, hosts={})
    folder = RunFolder(tmp_path / "run", {})
    attempts: list[int] = []

    def restart(*arguments: Any) -> None:
        attempts.append(len(attempts))
        if len(attempts) > 20:
            raise KeyboardInterrupt
        if progress and len(attempts) % 4 == 0:
            (folder.path / "checkpoints" / f"round-{len(attempts):08d}").mkdir(parents=True)
        raise PeerRestarted("second restarted")

    monkeypatch.setattr(training, "_run_once", restart)
    with pytest.raises(KeyboardInterrupt if progress else PeerLost) as caught:
        training._run_recorded(
            settings, job, lambda: federation(hosts={}).guest, folder, lambda port: None
        )
    folder.finish({})
    assert len(attempts) == (21 if progress else 6)
    if not progress:
        assert str(caught.value).startswith("second restarted, and peers had restarted 5 times")
