"""The curvature of losses, and the loss of a constant prediction."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from celu.errors import ModelError
from celu.models.losses import LOSSES, Loss, constant_loss

# Each prediction is repeated, and its labels occur as often as it says: a batch whose labels are
# drawn from the model, without the noise of drawing.
CALIBRATED = {
    "binary": (
        torch.tensor([0.25] * 4 + [0.5] * 2 + [0.8] * 5).logit(),
        torch.tensor([1.0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 0]),
    ),
    "multiclass": (
        torch.tensor([[0.5, 0.25, 0.25]] * 4 + [[0.2, 0.2, 0.6]] * 5).log(),
        torch.tensor([0, 0, 1, 2, 0, 1, 2, 2, 2]),
    ),
}


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_log_loss_curves_as_much_as_its_squared_gradient(name: str) -> None:
    output, labels = CALIBRATED[name]
    assert LOSSES[name].curvature(output, labels) == 1.0
    # The estimate for any loss agrees, where the labels follow the model.
    assert Loss(LOSSES[name].per_instance).curvature(output, labels) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_the_curvature_of_squared_error_is_half_over_the_mean_squared_residual(
    shape: tuple[int, ...],
) -> None:
    output, labels = torch.tensor([1.0, 2.0, 0.0, -1.0]), torch.tensor([0.0, 2.0, 3.0, 1.0])
    # Residuals 1, 0, -3, -2: their mean square is 14 / 4.
    found = LOSSES["regression"].curvature(output.reshape(shape), labels)
    assert found == pytest.approx(1 / (2 * 14 / 4))


def test_the_curvature_of_a_custom_loss_of_one_output() -> None:
    output, labels = torch.tensor([0.0, math.log(3.0)]), torch.tensor([2.0, 1.0])
    poisson = Loss(lambda output, labels: output.exp() - labels * output)
    # Second derivatives 1 and 3, gradients 1 - 2 and 3 - 1.
    assert poisson.curvature(output, labels) == pytest.approx((1 + 3) / (1 + 4))


def two_scales(output: Tensor, labels: Tensor) -> Tensor:
    return (torch.tensor([1.0, 3.0]) * (output - labels[:, None]).square()).sum(dim=1)


def test_the_curvature_of_a_custom_loss_of_two_outputs() -> None:
    output, labels = torch.tensor([[1.0, 0.0], [2.0, 4.0]]), torch.tensor([0.0, 3.0])
    # Residuals (1, 0) and (-1, 1): gradients (2, 0) and (-2, 6); a Hessian of diag(2, 6) each.
    assert Loss(two_scales).curvature(output, labels) == pytest.approx((8 + 8) / (4 + 4 + 36))


@pytest.mark.parametrize(
    "per_instance",
    [
        lambda output, labels: (output - labels).abs(),
        lambda output, labels: F.l1_loss(output, labels, reduction="none"),
        lambda output, labels: output * labels,  # linear
        lambda output, labels: -(output - labels).square(),  # concave
        lambda output, labels: (output - labels).square() * 0,  # no gradient
    ],
    ids=["absolute", "torch's absolute", "linear", "concave", "flat"],
)
def test_a_loss_that_does_not_curve_upwards_has_a_curvature_of_zero(per_instance: object) -> None:
    output, labels = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.0, 1.0, 3.0])
    assert Loss(per_instance).curvature(output, labels) == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize(("outputs", "tolerance"), [(64, 1e-5), (200, 0.05)])
def test_the_curvature_is_exact_up_to_64_outputs_and_estimated_beyond(
    outputs: int, tolerance: float
) -> None:
    random = torch.Generator().manual_seed(5)
    output = torch.randn(256, outputs, generator=random)
    labels = torch.randint(0, outputs, (256,), generator=random)
    p = output.softmax(dim=1)
    exact = (p * (1 - p)).sum() / (p - F.one_hot(labels, outputs)).square().sum()
    before = torch.get_rng_state()
    loss = Loss(LOSSES["multiclass"].per_instance)
    found = loss.curvature(output, labels)
    assert found == pytest.approx(float(exact), rel=tolerance)
    assert loss.curvature(output, labels) == found
    assert torch.equal(torch.get_rng_state(), before)


def margin(output: Tensor, labels: Tensor) -> Tensor:
    """A loss of which torch implements only the first derivative."""
    return F.multi_margin_loss(output, labels, reduction="none")


def test_a_loss_that_cannot_be_differentiated_twice_has_no_curvature() -> None:
    with pytest.raises(ModelError, match=r"cannot be differentiated twice .* is_log_loss=True"):
        Loss(margin).curvature(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))


def test_the_log_loss_of_a_constant_prediction() -> None:
    labels = torch.tensor([1.0] * 10 + [0.0] * 90)
    losses = F.binary_cross_entropy(torch.full((100,), 0.1), labels, reduction="none")
    expected = pytest.approx((float(losses.mean()), float(losses.std(correction=0))), rel=1e-5)
    assert constant_loss("binary", labels) == expected
    assert constant_loss("multiclass", labels.long()) == expected
    even = constant_loss("binary", torch.tensor([0.0, 1.0]))
    assert even == pytest.approx((math.log(2), 0.5))  # else the deviation would be 0
    assert even.of_batch(100) == pytest.approx((math.log(2), 0.05))


def test_the_squared_error_of_a_constant_prediction() -> None:
    labels = torch.tensor([0.0, 1.0, 2.0, 9.0])
    squares = (labels - 3).square()
    expected = pytest.approx((float(squares.mean()), float(squares.std(correction=0))))
    assert constant_loss("regression", labels) == expected
    assert constant_loss("regression", torch.tensor([1.0, 3.0])) == pytest.approx((1.0, 1.0))
