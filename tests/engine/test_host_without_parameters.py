"""A host whose bottom has no parameters to train: the guest trains on its Z."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import celu
from celu.errors import ModelError
from federation import Federation, federation


class Raw(nn.Module):
    """Z made of the host's own numbers, without parameters."""

    def __init__(self, z_width: int) -> None:
        super().__init__()
        self._z_width = z_width

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        return torch.cat([numbers, numbers], dim=1)[:, : self._z_width]


class Detached(nn.Module):
    """A bottom with a parameter that Z does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        return self.layer(numbers).detach()


def with_bottom(bottom: nn.Module, **job: object) -> Federation:
    fed = federation(**job)
    return replace(fed, hosts={"host": replace(fed.hosts["host"], bottom=bottom)})


@pytest.mark.parametrize("method", [{"R": 1}, {"R": 3, "depth": 2}, "auto"], ids=str)
@pytest.mark.parametrize("kind", ["no parameters", "frozen"])
def test_the_guest_trains_with_a_host_that_cannot(kind: str, method: Any) -> None:
    frozen = federation().hosts["host"].bottom.requires_grad_(False)
    fed = with_bottom(frozen if kind == "frozen" else Raw(6), method=method)
    before = fed.weights()
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    assert result.rounds == 14
    after = fed.weights()
    changed = {key.split(".")[0] for key in after if not torch.equal(after[key], before[key])}
    assert changed == {"top", "bottom"}, "the guest's top and bottom"


def test_z_that_does_not_depend_on_the_parameters_is_refused() -> None:
    fed = with_bottom(Detached())
    with pytest.raises(ModelError, match="host: expected Z to depend on the bottom model's param"):
        celu.simulate(fed.job, fed.guest, fed.hosts)
