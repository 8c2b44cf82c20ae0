"""The mean weight of a batch at a late use, by which `auto` decides on local steps."""

from __future__ import annotations

import pytest
import torch

import celu
from celu.engine.host_trainer import HostTrainer
from celu.errors import CheckpointError
from celu.workset.workset import Workset
from federation import federation


def workset(*weights: float, auto: bool = True) -> Workset:
    made = Workset.from_job(celu.Job(rounds=1, hosts={}, method=celu.Method(auto=auto)), "host")
    made.reuse_weights.extend(torch.tensor(weight) for weight in weights)
    return made


def test_it_is_the_median_of_the_latest_batches_since_the_last_call() -> None:
    made = workset(*[0.1] * 20, *[0.9] * 9, *[0.5] * 7)
    assert made.pop_reuse_weight() == pytest.approx(0.9)  # of 16
    assert made.pop_reuse_weight() == 0.0


def test_a_negative_weight_counts_as_none() -> None:
    assert workset(-0.5).pop_reuse_weight() == 0.0  # a guest would refuse the report


def test_without_auto_nothing_is_recorded() -> None:
    assert not workset(0.9, auto=False).reuse_weights


def test_a_checkpoint_has_the_weights_so_far() -> None:
    fed = federation(method=celu.Method(auto=True))
    saved, resumed = (HostTrainer("host", fed.hosts["host"], fed.job) for _ in range(2))
    saved.workset.reuse_weights.extend(torch.tensor([0.3, 0.7, 0.8]))
    resumed.workset.reuse_weights.append(torch.tensor(0.1))
    metadata, tensors = saved.state_dict()
    resumed.load_state_dict(metadata, tensors)
    assert resumed.workset.pop_reuse_weight() == saved.workset.pop_reuse_weight() > 0.6
    tensors["reuse_weights"] = torch.zeros(2, 2)
    with pytest.raises(CheckpointError, match="reuse_weights"):
        resumed.load_state_dict(metadata, tensors)
