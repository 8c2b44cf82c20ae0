"""Instance weighting of three rows, compared with manual computations."""

import math

import pytest
import torch

from celu.workset.weighting import (
    CompensatedWeighting,
    CosineWeighting,
    StaleDerivatives,
    StaleLosses,
)

# Angles between fresh and stale: 0, 45 and 135 degrees.
FRESH = torch.tensor([[2.0, 0.0], [1.0, 1.0], [-1.0, 1.0]])
STALE = torch.tensor([[5.0, 0.0], [3.0, 0.0], [4.0, 0.0]])
COSINES = [1.0, math.sqrt(0.5), -math.sqrt(0.5)]


@pytest.mark.parametrize(
    ("xi", "expected"),
    [
        (180.0, COSINES),
        (90.0, [1.0, math.sqrt(0.5), 0.0]),
        (60.0, [1.0, math.sqrt(0.5), 0.0]),
        (30.0, [1.0, 0.0, 0.0]),
    ],
)
def test_weights_are_cosines_and_zero_beyond_xi(xi: float, expected: list[float]) -> None:
    weights = CosineWeighting(xi).weigh_losses(StaleLosses(FRESH, STALE))
    assert weights.weights_B.tolist() == pytest.approx(expected, abs=1e-6)
    assert weights.similarity_B.tolist() == pytest.approx(COSINES, abs=1e-6)


def test_there_is_one_weight_per_instance() -> None:
    assert CosineWeighting(60).weigh_losses(StaleLosses(FRESH, STALE)).weights_B.shape == (3,)


def test_no_gradient_flows_through_the_weights() -> None:
    fresh = FRESH.clone().requires_grad_()
    assert not CosineWeighting(60).weigh_losses(StaleLosses(fresh, STALE)).weights_B.requires_grad


def test_tiny_derivatives_have_exact_similarities() -> None:
    tiny = 1e-12
    weights = CosineWeighting(60).weigh_losses(StaleLosses(FRESH * tiny, STALE * tiny))
    assert weights.similarity_B.tolist() == pytest.approx(COSINES, abs=1e-6)


@pytest.mark.parametrize("exponent", range(-44, 18))
def test_a_cosine_is_never_more_than_one(exponent: int) -> None:
    fresh, stale = FRESH * 10.0**exponent, STALE * 10.0**exponent
    similarity_B = CosineWeighting(60).weigh_losses(StaleLosses(fresh, stale)).similarity_B
    assert similarity_B.abs().max() <= 1 + 1e-6
    if exponent >= -17:
        assert similarity_B.tolist() == pytest.approx(COSINES, abs=1e-6)


def test_a_row_of_zeros_has_weight_zero() -> None:
    weights = CosineWeighting(60).weigh_losses(StaleLosses(torch.zeros(1, 2), torch.ones(1, 2)))
    assert weights.weights_B.tolist() == [0.0]


# Z moved by (-1, -1), (0.5, 7) and (1, 1), so dz . (Z' - Z) is -0.3, -0.15 and 1.0. Times the
# batch size of 3: -0.9, -0.45 and 3.0.
Z_SENT = torch.tensor([[1.0, 0.0], [2.0, 1.0], [0.0, 1.0]])
Z_NOW = torch.tensor([[0.0, -1.0], [2.5, 8.0], [1.0, 2.0]])
DZ = torch.tensor([[0.1, 0.2], [-0.3, 0.0], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("curvature", "expected"),
    [
        (0.0, [1.0, 1.0, 1.0]),
        (0.1, [0.91, 0.955, 1.3]),
        (1.0, [0.1, 0.55, 2.0]),  # 4 is clipped to 2
        (2.0, [0.0, 0.1, 2.0]),  # -0.8 is clipped to 0
        (1e12, [0.0, 0.0, 2.0]),
    ],
)
def test_a_derivative_is_corrected_for_how_far_z_has_moved(
    curvature: float, expected: list[float]
) -> None:
    stale = StaleDerivatives(Z_NOW, Z_SENT, DZ, curvature)
    weights = CompensatedWeighting(60).weigh_derivatives(stale)
    assert weights.weights_B.tolist() == pytest.approx(expected, abs=1e-6)
    # Reported as by the cosine weighting: (0, -1) and (1, 0) are at right angles.
    assert weights.similarity_B[0].item() == pytest.approx(0.0, abs=1e-6)
    assert weights.similarity_B[2].item() == pytest.approx(2 / math.sqrt(5), abs=1e-6)


def test_a_derivative_is_exact_where_z_has_not_moved() -> None:
    stale = StaleDerivatives(Z_SENT.clone(), Z_SENT, DZ, curvature=7.0)
    assert CompensatedWeighting(60).weigh_derivatives(stale).weights_B.tolist() == [1.0, 1.0, 1.0]


def test_no_gradient_flows_through_a_correction() -> None:
    stale = StaleDerivatives(Z_NOW.clone().requires_grad_(), Z_SENT, DZ, curvature=1.0)
    assert not CompensatedWeighting(60).weigh_derivatives(stale).weights_B.requires_grad


def test_a_compensating_guest_weights_its_losses_as_the_paper_does() -> None:
    stale = StaleLosses(FRESH, STALE)
    compensated = CompensatedWeighting(60).weigh_losses(stale)
    assert torch.equal(compensated.weights_B, CosineWeighting(60).weigh_losses(stale).weights_B)
