"""Complete runs with faults satisfy the invariants, and bugs that break one are caught."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from celu.checkpoint import agreement
from celu.checkpoint.disk import BytesLike
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.identity import RunIdentity, read_identity
from celu.transport.delivery import ConnectionProtocol, Delivery
from chaos import connection, link, log_file
from chaos.disk import SimDisk, _File
from chaos.nemesis import KINDS
from chaos.run import Verdict, run_seed

NUM_SEEDS = 300
MAX_SEEDS = 200  # within which a bug must be caught


def problems(verdicts: Iterable[Verdict]) -> list[str]:
    return [f"seed {v.seed}: {v.problem}" for v in verdicts if v.problem is not None]


def test_every_seed_ends_with_the_bits_of_a_run_without_faults() -> None:
    verdicts = [run_seed(seed) for seed in range(1, NUM_SEEDS + 1)]
    assert not problems(verdicts)
    assert sum((v.faults for v in verdicts), Counter()).keys() == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_alone_is_survived(kind: str) -> None:
    verdicts = [run_seed(seed, kinds=[kind]) for seed in range(5)]
    assert not problems(verdicts)
    assert sum(v.faults[kind] for v in verdicts) > 0


@pytest.mark.parametrize("kind", ["reset", "drop", "duplicate", "reorder", "truncate", "flip"])
def test_damaged_records_stop_no_party(kind: str) -> None:
    ends = sum((run_seed(seed, kinds=[kind]).ends for seed in range(5)), Counter())
    assert ends.keys() == {"done"}


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    code = "from chaos.run import run_seed; print(*run_seed(9, traced=True).trace, sep='\\n')"
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


def is_caught(text: str, **options: Any) -> bool:
    """Whether some seed reports a problem with this text."""
    verdicts = (run_seed(seed, **options) for seed in range(MAX_SEEDS))
    return any(verdict.problem and text in verdict.problem for verdict in verdicts)


def without_sync(folder: str) -> type[SimDisk]:
    """A disk that does not sync folders whose name matches, but reports success."""

    class WithoutSync(SimDisk):
        def sync_folder(self, path: Path) -> None:
            if not fnmatch(path.name, folder):
                super().sync_folder(path)

    return WithoutSync


@pytest.mark.parametrize("folder", ["", "run", "checkpoints", ".round-*"])
def test_a_missing_sync_of_a_folder_is_caught(folder: str) -> None:
    assert is_caught(
        "lost the checkpoint", kinds=["power cut", "blackout"], make_disk=without_sync(folder)
    )


class NoFileSync(SimDisk):
    """A disk that leaves files in the page cache, but reports a sync."""

    def write(self, path: Path, parts: Iterable[BytesLike]) -> None:
        super().write(path, parts)
        file = self._find(path)
        assert isinstance(file, _File)
        file.durable = None


def test_a_missing_sync_of_a_file_is_caught() -> None:
    assert is_caught("lost the checkpoint", kinds=["power cut", "blackout"], make_disk=NoFileSync)


class ForgetsOne(ConnectionProtocol):
    """Requests the last message again on every new connection."""

    def __init__(self, delivery: Delivery, *, dials: bool, piece_bytes: int) -> None:
        super().__init__(delivery, dials=dials, piece_bytes=piece_bytes)
        delivery.received = max(0, delivery.received - 1)


def test_a_message_delivered_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ConnectionProtocol", ForgetsOne)
    assert is_caught("delivered", kinds=["reset"])


def test_a_link_that_never_reconnects_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "backoff", lambda rng: iter(lambda: 1e9, None))
    assert is_caught("PeerLost", kinds=["reset"])


def test_lost_checkpoints_stop_some_runs_until_their_operators_restart_them() -> None:
    verdicts = [run_seed(seed, kinds=["lost checkpoints"]) for seed in range(60)]
    assert not problems(verdicts)
    assert sum((v.ends for v in verdicts), Counter())["CheckpointError"] > 0


@pytest.mark.parametrize("new_state", ["superseded", "discarded"])
def test_a_party_that_deletes_newer_checkpoints_instead_of_setting_them_aside_is_caught(
    new_state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aside = Checkpoints._set_aside

    def delete(self: Checkpoints, state: str, round_: int, to: str) -> None:
        set_aside(self, state, round_, to)
        if to == new_state:
            self._disk.remove(self._path(round_, to))

    monkeypatch.setattr(Checkpoints, "_set_aside", delete)
    assert is_caught("deleted its newest checkpoint", kinds=["lost checkpoints"])


def test_parties_that_follow_one_without_checkpoints_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agreement, "_check_repeated", lambda *_: None)
    assert is_caught("without a decision", kinds=["lost checkpoints"])


def test_a_log_that_blocks_resuming_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "is_resumable", lambda disk: False)
    assert is_caught("ConfigError", kinds=["damaged log"])


def test_a_lost_run_json_that_is_not_recovered_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(self: Checkpoints) -> tuple[RunIdentity | None, list[int]]:
        return read_identity(self._run_folder, self._disk), self.available_rounds()

    monkeypatch.setattr(Checkpoints, "scan", scan)
    assert is_caught("different runs", kinds=["damaged log"])
