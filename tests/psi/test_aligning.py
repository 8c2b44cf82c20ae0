"""`align_party` starts over when a peer restarts, but not forever, and records what it answered."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import celu
from celu.config.party import PartySettings, read_party
from celu.errors import PeerLost, PeerRestarted
from celu.events import Event, Restarted, ignore
from celu.launch import aligning
from celu.psi.protocol import AlignmentResult
from stores import write_store

PARTY = """
role = "guest"
name = "guest"
threads = 1
[data]
store = "store"
alignment = "alignment"
"""
JOB = celu.Job(rounds=1, hosts={})


@pytest.fixture
def settings(tmp_path: Path) -> PartySettings:
    write_store(tmp_path / "store", {"a": np.arange(9, dtype=np.float32)})
    (tmp_path / "party.toml").write_text(PARTY)
    return read_party(tmp_path / "party.toml")


def test_an_alignment_gives_up_on_a_peer_that_restarts_again_and_again(
    settings: PartySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts = iter(range(100))

    @contextmanager
    def restarting(*arguments: Any) -> Iterator[dict[str, Any]]:
        next(restarts)  # an alignment that never gives up fails here
        raise PeerRestarted("host restarted")
        yield {}

    monkeypatch.setattr(aligning, "open_links", restarting)
    events: list[Event] = []
    with pytest.raises(PeerLost, match=r"host restarted, and peers had restarted 20 times"):
        aligning.align_party(settings, JOB, lambda port: None, events.append)
    assert [type(event) for event in events] == [Restarted] * 20


def test_an_alignment_records_how_many_ids_of_a_peer_were_answered(
    settings: PartySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(*arguments: Any) -> AlignmentResult:
        return AlignmentResult(np.arange(3), "00", {"host": 3}, {"host": 50}, {"host": 400})

    monkeypatch.setattr(aligning, "align_guest", found)
    aligning.align_party(settings, JOB, lambda port: None, ignore)
    facts = json.loads((tmp_path / "alignment" / "alignment.json").read_text())
    assert facts["peers"] == {"host": 50}
    assert facts["answered"] == {"host": 400}


def test_an_alignment_uses_the_cpus_that_its_process_may_use(
    settings: PartySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 7})
    used: list[int] = []

    def start(num_processes: int, group: str) -> None:
        used.append(num_processes)
        raise KeyboardInterrupt

    monkeypatch.setattr(aligning, "Workers", start)
    for threads in (None, 1):
        own = settings.model_copy(update={"threads": threads})
        with pytest.raises(KeyboardInterrupt):
            aligning.align_party(own, JOB, lambda port: None, ignore)
    assert used == [3, 1]
