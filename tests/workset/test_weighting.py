"""Instance weighting of three rows, compared with manual computations."""

import math

import pytest
import torch

from celu.workset.weighting import CosineWeighting

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
    weights = CosineWeighting(xi).weigh(FRESH, STALE)
    assert weights.weights_B.tolist() == pytest.approx(expected, abs=1e-6)
    assert weights.similarity_B.tolist() == pytest.approx(COSINES, abs=1e-6)


def test_there_is_one_weight_per_instance() -> None:
    assert CosineWeighting(60).weigh(FRESH, STALE).weights_B.shape == (3,)


def test_no_gradient_flows_through_the_weights() -> None:
    fresh = FRESH.clone().requires_grad_()
    assert not CosineWeighting(60).weigh(fresh, STALE).weights_B.requires_grad


def test_tiny_derivatives_have_exact_similarities() -> None:
    tiny = 1e-12
    weights = CosineWeighting(60).weigh(FRESH * tiny, STALE * tiny)
    assert weights.similarity_B.tolist() == pytest.approx(COSINES, abs=1e-6)


@pytest.mark.parametrize("exponent", range(-44, 18))
def test_a_cosine_is_never_more_than_one(exponent: int) -> None:
    fresh, stale = FRESH * 10.0**exponent, STALE * 10.0**exponent
    similarity_B = CosineWeighting(60).weigh(fresh, stale).similarity_B
    assert similarity_B.abs().max() <= 1 + 1e-6
    if exponent >= -17:
        assert similarity_B.tolist() == pytest.approx(COSINES, abs=1e-6)


def test_a_row_of_zeros_has_weight_zero() -> None:
    weights = CosineWeighting(60).weigh(torch.zeros(1, 2), torch.ones(1, 2))
    assert weights.weights_B.tolist() == [0.0]
