"""Members of a top: each has its own loss, and hosts get one factor for all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import celu
from celu.errors import ConfigError, ContractMismatch
from celu.models.losses import LOSSES, Loss
from celu.models.members import MemberLoss
from celu.models.residual import ResidualTop, ResidualTower
from celu.models.user_code import name_of
from federation import Federation, federation

LABELS = torch.tensor([1.0, 0.0, 1.0, 1.0])


class Top(nn.Module):
    members = 3


def outputs(members: int = 3) -> Tensor:
    return torch.randn(4, members, 1, generator=torch.Generator().manual_seed(0))


def quartic(output: Tensor, labels: Tensor) -> Tensor:
    return (output.reshape(-1) - labels) ** 4


def test_the_loss_of_a_row_is_the_mean_of_its_members_losses() -> None:
    each = [
        F.binary_cross_entropy_with_logits(member.reshape(-1), LABELS, reduction="none")
        for member in outputs().unbind(dim=1)
    ]
    found = MemberLoss(LOSSES["binary"], Top()).per_instance(outputs(), LABELS)
    torch.testing.assert_close(found, torch.stack(each).mean(dim=0))


def test_members_may_predict_classes() -> None:
    output, labels = torch.randn(4, 3, 5), torch.tensor([4, 0, 1, 2])
    each = [F.cross_entropy(member, labels, reduction="none") for member in output.unbind(dim=1)]
    found = MemberLoss(LOSSES["multiclass"], Top()).per_instance(output, labels)
    torch.testing.assert_close(found, torch.stack(each).mean(dim=0))


def test_an_output_of_the_whole_model_has_the_loss_as_it_is() -> None:
    whole = outputs().mean(dim=1)
    loss = MemberLoss(LOSSES["binary"], Top())
    assert torch.equal(
        loss.per_instance(whole, LABELS), LOSSES["binary"].per_instance(whole, LABELS)
    )
    assert torch.equal(loss.combine(outputs()), whole) and loss.combine(whole) is whole


def test_a_loss_that_returns_another_shape_does_so_with_members() -> None:
    mean = Loss(lambda output, labels: (output.reshape(-1) - labels).square().mean())
    assert MemberLoss(mean, Top()).per_instance(outputs(), LABELS).dim() == 0
    columns = Loss(lambda output, labels: output - labels[:, None])
    assert MemberLoss(columns, Top()).per_instance(outputs(), LABELS).shape == (4, 1)


@pytest.mark.parametrize("top", [Top(), nn.Linear(1, 1)], ids=["members", "one"])
def test_errors_name_the_loss_and_not_what_averages_it(top: nn.Module) -> None:
    assert name_of(MemberLoss(Loss(quartic), top).per_instance) == name_of(quartic)


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2.0, 0.5, 1.0])], ids=str)
@pytest.mark.parametrize("loss", [Loss(quartic), LOSSES["binary"]], ids=["own", "binary"])
def test_curvature_is_that_of_the_members_as_rows_of_their_own(
    loss: Loss, weights: Tensor | None
) -> None:
    repeated = None if weights is None else weights.repeat_interleave(3)
    expected = loss.curvature(outputs().flatten(0, 1), LABELS.repeat_interleave(3), repeated)
    found = MemberLoss(loss, Top()).curvature(outputs(), LABELS, weights)
    assert found == pytest.approx(expected)


def test_one_factor_for_a_row_is_the_mean_of_the_factors_of_its_members() -> None:
    """What a host computes from all of dZ, and what each member's part asks for."""
    members, rows = 3, 4
    logits, moved = outputs().double(), 0.1 * torch.randn(rows, members, dtype=torch.float64)
    slopes = logits[..., 0].sigmoid() - LABELS[:, None]
    dz = slopes / members / rows
    each = 1 + slopes * moved  # the log loss of a member has curvature 1
    torch.testing.assert_close(1 + rows * (dz * moved).sum(dim=1), each.mean(dim=1))


@pytest.mark.parametrize("loss", ["binary", "multiclass", "regression"])
def test_members_learn_with_corrected_derivatives_and_rounds_in_flight(loss: str) -> None:
    """The curvature of the loss "regression" is not known, and computed from the members."""
    method = celu.Method(R=3, W=3, depth=2, weighting="compensated")
    fed = federation(loss=loss, is_residual=True, rounds=20, method=method)
    losses = [found["loss"] for found in celu.simulate(fed.job, fed.guest, fed.hosts).evaluations]
    assert losses[-1] < losses[0]


def residual(*, top: int = 4, guest: int = 4, host: int = 4) -> Federation:
    fed = federation()
    fed.guest = replace(
        fed.guest,
        bottom=ResidualTower(8, {"x": 3}, {}, members=guest, width=8),
        top=ResidualTop([8, 8], members=top, width=8),
        train=rows(fed.guest.train),
        test=rows(fed.guest.test),
    )
    held = fed.hosts["host"]
    fed.hosts["host"] = celu.Host(
        bottom=ResidualTower(8, {"x": 3}, {}, members=host, width=8),
        train=rows(held.train),
        test=rows(held.test),
    )
    fed.job = fed.job.model_copy(update={"hosts": {"host": celu.HostTerms(z_width=8)}})
    return fed


def rows(of: celu.Dataset) -> celu.Dataset:
    generator = torch.Generator().manual_seed(0)
    return celu.Dataset({"x": torch.randn(of.num_rows, 3, generator=generator)}, of.labels)


def test_parties_with_the_same_members_train_together() -> None:
    fed = residual()
    assert celu.simulate(fed.job, fed.guest, fed.hosts).rounds == fed.job.rounds


def test_a_guest_whose_bottom_and_top_differ_in_members_is_refused() -> None:
    fed = residual(guest=8)
    with pytest.raises(ConfigError, match=r"members: .* got 8 in the bottom and 4 in the top"):
        celu.simulate(fed.job, fed.guest, fed.hosts)


def test_parties_whose_members_differ_are_refused_before_the_first_round() -> None:
    fed = residual(host=2)
    with pytest.raises(ContractMismatch, match=r"members: \w+ has \d, \w+ has \d. Set the same"):
        celu.simulate(fed.job, fed.guest, fed.hosts)
