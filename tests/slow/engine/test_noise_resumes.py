"""A run with noise that is killed and resumes has the same bits, and its key stays at its owner."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import celu
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.writer import InlineWriter
from celu.errors import CheckpointError
from celu.transport.message import Message
from checkpoint.disks import QuickDisk
from federation import Federation, assert_same_bits
from noises import GAUSSIAN, MARVELL, noisy_federation
from twins import messages_to_hosts, on_the_wire

CASES: dict[str, dict[str, Any]] = {
    "on Z": {"z_noise": GAUSSIAN, "method": celu.Method(R=3, W=4, depth=3)},
    "on Z, 4 bits": {"z_noise": GAUSSIAN, "codec": "4bit", "method": celu.Method(R=3, depth=2)},
    "on both": {"z_noise": GAUSSIAN, "dz_noise": GAUSSIAN, "hosts": {"one": 6, "two": 3}},
    "Marvell's": {"dz_noise": MARVELL, "method": celu.Method(R=4, W=4, depth=2)},
}


def train(
    fed: Federation, folder: Path, killed: int | None = None, events: list[str] | None = None
) -> None:
    stores = {
        name: Checkpoints(folder / name, QuickDisk(), InlineWriter())
        for name in (fed.job.guest, *fed.hosts)
    }

    def follow(event: celu.Event) -> None:
        if events is not None:
            events.append(str(event.fields))
        if killed is not None and event.event == "checkpoint" and event.fields["round"] >= killed:
            raise RuntimeError("killed")

    celu.simulate(fed.job, fed.guest, fed.hosts, checkpoints=stores, callbacks=[follow])


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_killed_and_resumed_has_the_same_bits(case: str, tmp_path: Path) -> None:
    fed = noisy_federation(checkpoint={"every": 3}, rounds=14, **CASES[case])
    whole, first, second = (copy.deepcopy(fed) for _ in range(3))
    train(whole, tmp_path / "whole")
    with pytest.raises(celu.CeluError):
        train(first, tmp_path / "killed", killed=6)
    train(second, tmp_path / "killed")
    assert_same_bits(second.weights(), whole.weights())


@pytest.mark.parametrize("noise", ["z_noise", "dz_noise"])
def test_another_key_is_refused_when_a_run_resumes(noise: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {noise: GAUSSIAN, "checkpoint": {"every": 3}, "rounds": 14}
    with pytest.raises(celu.CeluError):
        train(noisy_federation(**given), tmp_path, killed=6)
    with pytest.raises(CheckpointError, match="noise_key: expected the key that the run started"):
        train(noisy_federation(**given, key=b"another key of noise"), tmp_path)


def test_no_file_and_no_message_contains_the_key(tmp_path: Path) -> None:
    key = tmp_path / "secret" / "noise.key"
    key.parent.mkdir()
    given: dict[str, Any] = {"z_noise": GAUSSIAN, "dz_noise": MARVELL, "key": key}
    fed = noisy_federation(checkpoint={"every": 3}, **given)
    events: list[str] = []
    train(fed, tmp_path / "runs", events=events)
    digits = key.read_text().strip()
    secret = bytes.fromhex(digits)
    assert key.stat().st_mode & 0o777 == 0o600
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert files
    for content in [path.read_bytes() for path in files]:
        assert secret not in content and digits.encode() not in content
    shown = [*events, repr(fed.guest), repr(fed.hosts)]
    assert not any(digits in text or repr(secret)[2:-1] in text for text in shown)
    messages: list[Message] = []
    sent = on_the_wire(messages_to_hosts(noisy_federation(**given), messages, received=messages)[0])
    assert len(sent) > 10_000 and secret not in sent and digits.encode() not in sent
