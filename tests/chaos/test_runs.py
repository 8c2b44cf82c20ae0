"""Whole runs under a nemesis keep their promises, and one that does not is caught."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from celu.checkpoint.disk import BytesLike
from celu.transport.delivery import ConnectionProtocol, Delivery
from chaos import connection, link
from chaos.disk import SimDisk, _File
from chaos.nemesis import KINDS
from chaos.running import Verdict, run_seed

NUM_SEEDS, MOST_S = 300, 50.0
PATIENCE = 200  # seeds within which what is broken must show


def problems(verdicts: Iterable[Verdict]) -> list[str]:
    return [f"seed {v.seed}: {v.problem}" for v in verdicts if v.problem is not None]


def test_every_seed_ends_with_the_bits_of_the_undisturbed_run() -> None:
    began, verdicts = time.monotonic(), []
    for seed in range(1, NUM_SEEDS + 1):
        if time.monotonic() - began > MOST_S:  # the rest is for a faster machine
            break
        verdicts.append(run_seed(seed))
    assert not problems(verdicts)
    assert sum((v.struck for v in verdicts), Counter()).keys() == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_alone_is_borne(kind: str) -> None:
    verdicts = [run_seed(seed, kinds=[kind]) for seed in range(5)]
    assert not problems(verdicts)
    assert sum(v.struck[kind] for v in verdicts) > 0


@pytest.mark.parametrize("kind", ["reset", "drop", "duplicate", "reorder", "truncate", "flip"])
def test_what_befalls_single_records_stops_nobody(kind: str) -> None:
    ends = sum((run_seed(seed, kinds=[kind]).ends for seed in range(5)), Counter())
    assert ends.keys() == {"done"}


def test_the_same_seed_gives_the_same_run_also_in_another_process() -> None:
    code = "from chaos.running import run_seed; print(*run_seed(9, traced=True).trace, sep='\\n')"
    trace = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    first, second = (run_seed(9, traced=True).trace for _ in range(2))
    assert first == second == trace.splitlines()
    assert first != run_seed(10, traced=True).trace


def is_caught(words: str, **broken: Any) -> bool:
    """Whether some seed notices what is broken, in such words."""
    verdicts = (run_seed(seed, **broken) for seed in range(PATIENCE))
    return any(verdict.problem and words in verdict.problem for verdict in verdicts)


def forgetful(folder: str) -> type[SimDisk]:
    """A disk that says it has synced folders of such a name, and has not."""

    class Forgetful(SimDisk):
        def sync_folder(self, path: Path) -> None:
            if not fnmatch(path.name, folder):
                super().sync_folder(path)

    return Forgetful


@pytest.mark.parametrize("folder", ["", "run", "checkpoints", ".round-*"])
def test_a_folder_that_is_not_synced_is_caught(folder: str) -> None:
    assert is_caught("now holds", kinds=["power cut", "blackout"], make_disk=forgetful(folder))


class Slow(SimDisk):
    """Says that a file is synced, and leaves it in the page cache."""

    def write(self, path: Path, parts: Iterable[BytesLike]) -> None:
        super().write(path, parts)
        file = self._find(path)
        assert isinstance(file, _File)
        file.kept = None


def test_a_file_that_is_not_synced_is_caught() -> None:
    assert is_caught("now holds", kinds=["power cut", "blackout"], make_disk=Slow)


class Unsure(ConnectionProtocol):
    """Asks for a message once more that it has had."""

    def __init__(self, delivery: Delivery, *, calls: bool, piece_bytes: int) -> None:
        super().__init__(delivery, calls=calls, piece_bytes=piece_bytes)
        delivery.received = max(0, delivery.received - 1)


def test_a_message_that_is_delivered_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ConnectionProtocol", Unsure)
    assert is_caught("delivered", kinds=["reset"])


def test_a_link_that_never_comes_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "backoff", lambda chance: iter(lambda: 1e9, None))
    assert is_caught("PeerLost", kinds=["reset"])
