"""A guest with labels only, whose top has no parameters: the hosts train, the guest does not."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import celu
from federation import (
    Federation,
    assert_same_bits,
    federation,
    train_in_memory,
    train_in_plain_loop,
)


class Sum(nn.Module):
    """The sum of all Z, without parameters."""

    def forward(self, *zs: Tensor) -> Tensor:
        return torch.stack([z.sum(dim=1) for z in zs]).sum(dim=0)


def label_only(top: nn.Module, **job: object) -> Federation:
    fed = federation(guest_has_features=False, **job)
    guest = celu.Guest(top=top, loss="binary", train=fed.guest.train, test=fed.guest.test)
    return replace(fed, guest=guest)


def frozen() -> nn.Module:
    return nn.Linear(6, 1).requires_grad_(False)


@pytest.mark.parametrize("make", [Sum, frozen])
def test_hosts_train_under_the_default_method(make: type[nn.Module]) -> None:
    fed = label_only(make())
    before = fed.weights()
    trained = copy.deepcopy(fed)
    result = celu.simulate(trained.job, trained.guest, trained.hosts)
    after = trained.weights()
    assert result.rounds == 14
    assert not torch.equal(
        after["host.bottom.layers.0.weight"], before["host.bottom.layers.0.weight"]
    )


def test_without_local_steps_at_the_host_the_bits_are_those_of_vanilla_training() -> None:
    assert_same_bits(train_in_memory(label_only(Sum())), train_in_plain_loop(label_only(Sum())))
