"""A party whose weights or optimizer state have diverged writes no checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import celu
from celu.checkpoint.generations import Checkpoints
from celu.checkpoint.writer import InlineWriter
from celu.engine.host_trainer import HostTrainer
from celu.errors import NonFiniteError
from celu.transport.message import Message
from checkpoint.disks import QuickDisk
from federation import assert_same_bits, federation

JOB: dict[str, Any] = {
    "rounds": 20,
    "checkpoint": {"every": 4},
    "evaluation": celu.Evaluation(every=20, metric="loss"),  # it would notice, too
}


def train(folder: Path, fed: Any) -> celu.Result:
    checkpoints = {
        n: Checkpoints(folder / n, QuickDisk(), InlineWriter()) for n in ("guest", "host")
    }
    return celu.simulate(fed.job, fed.guest, fed.hosts, checkpoints=checkpoints)


@pytest.mark.parametrize("value", [3e38, 1e22], ids=["weights", "optimizer state only"])
def test_one_extreme_derivative_is_not_checkpointed_and_the_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    whole = federation(**JOB)
    celu.simulate(whole.job, whole.guest, whole.hosts)
    update = HostTrainer.update

    def extreme(self: HostTrainer, at: int, derivative: Message) -> None:
        if at == 7 and derivative.tensor is not None:
            derivative.tensor.fill_(value)
        update(self, at, derivative)

    with monkeypatch.context() as patch:
        patch.setattr(HostTrainer, "update", extreme)
        with pytest.raises(NonFiniteError, match=r"after 8 rounds the .* contained NaN") as caught:
            train(tmp_path, federation(**JOB))
    assert "no step" not in str(caught.value)
    held = Checkpoints(tmp_path / "host", QuickDisk())
    assert held.available_rounds()[-1] == 4
    for name, tensor in held.load(4).tensors.items():
        assert bool(torch.isfinite(tensor).all()), name
    again = federation(**JOB)
    assert train(tmp_path, again).rounds == 20
    assert_same_bits(again.weights(), whole.weights())


def test_a_buffer_may_hold_infinities(tmp_path: Path) -> None:
    fed = federation(**JOB)
    fed.hosts["host"].bottom.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    assert train(tmp_path, fed).rounds == 20


def test_large_finite_weights_are_checkpointed_although_their_sum_overflows(tmp_path: Path) -> None:
    fed = federation(**JOB)
    unused = torch.nn.Parameter(torch.full((4,), 3e38), requires_grad=False)
    fed.hosts["host"].bottom.register_parameter("unused", unused)
    assert train(tmp_path, fed).rounds == 20
