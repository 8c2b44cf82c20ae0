"""Noise on rows: its size, its directions, and that only the owner of a key knows it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from celu.privacy.row_noise import marvell


def gradients() -> tuple[Tensor, Tensor]:
    """dZ of 4,000 rows, a quarter positive: positives are apart on one line, and vary more."""
    random = torch.Generator().manual_seed(0)
    is_positive = torch.arange(4000) % 4 == 0
    dz = torch.randn(4000, 8, generator=random) * torch.where(is_positive, 0.2, 0.1)[:, None]
    dz[:, 0] += torch.where(is_positive, 1.5, -0.5)
    return dz, is_positive


def normal(like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(1))


def test_marvells_noise_has_the_power_that_the_contract_says_and_no_mean() -> None:
    dz, is_positive = gradients()
    added = marvell(dz, is_positive, 3.0, normal(dz)) - dz
    assert float(added.square().sum(dim=1).mean()) == pytest.approx(3 * 2.0**2, rel=0.1)
    assert float(added.mean(dim=0).abs().max()) < 0.2


def test_marvell_makes_both_classes_vary_alike_across_the_line_between_them() -> None:
    dz, is_positive = gradients()
    noisy = marvell(dz, is_positive, 8.0, normal(dz))
    across = noisy[:, 1:].std(dim=0).mean(), noisy[is_positive, 1:].std(dim=0).mean()
    assert float(across[0]) == pytest.approx(float(across[1]), rel=0.05)
    along = [float(noisy[rows, 0].std()) for rows in (is_positive, ~is_positive)]
    assert along[0] == pytest.approx(along[1], rel=0.15) and min(along) > 4


def test_where_dz_has_few_directions_the_noise_of_marvell_marks_one_class() -> None:
    random = torch.Generator().manual_seed(0)
    is_positive = torch.arange(4000) % 4 == 0
    size = torch.where(is_positive, 0.3, 0.1)[:, None]
    dz = torch.cat([torch.randn(4000, 2, generator=random) * size, torch.zeros(4000, 30)], dim=1)
    dz[:, 0] += torch.where(is_positive, 1.5, -0.5)
    noisy = marvell(dz, is_positive, 8.0, normal(dz))
    elsewhere = noisy[:, 2:].norm(dim=1)  # where dZ of neither class has anything
    assert float(elsewhere[is_positive].max()) < float(elsewhere[~is_positive].min())
