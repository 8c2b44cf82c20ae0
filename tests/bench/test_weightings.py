"""Each variant of the compensated weighting differs from it as its docstring says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.paper import weightings
from celu.workset.weighting import (
    CompensatedWeighting,
    CosineWeighting,
    StaleDerivatives,
    StaleLosses,
)

XI = 60.0
CURVATURE = 0.8
# Rows along dz by these distances, in a batch of 8: factors from -1.56 to 4.84.
MOVED_B = torch.tensor([-0.4, -0.2, -0.1, 0.0, 0.1, 0.2, 0.4, 0.6])


def stale_derivatives() -> StaleDerivatives:
    dz_BD = torch.tensor([[1.0, 0.0]]).repeat(8, 1)
    stale_BD = torch.tensor([[0.3, 1.0]]).repeat(8, 1)
    return StaleDerivatives(stale_BD + MOVED_B[:, None] * dz_BD, stale_BD, dz_BD, CURVATURE)


def factors(constant: float = 1.0) -> Tensor:
    return 1 + constant * CURVATURE * 8 * MOVED_B


@pytest.mark.parametrize(
    ("variant", "expected_B"),
    [
        (CompensatedWeighting, factors().clamp(0, 2)),
        (weightings.Half, factors(0.5).clamp(0, 2)),
        (weightings.Double, factors(2).clamp(0, 2)),
        (weightings.Fourfold, factors(4).clamp(0, 2)),
        (weightings.AtMostOne, factors().clamp(0, 1)),
        (weightings.AtMostFour, factors().clamp(0, 4)),
        (weightings.Unclipped, factors()),
        (weightings.UnweightedGuest, factors().clamp(0, 2)),
    ],
)
def test_the_factor_has_the_constant_and_the_clip_of_the_variant(
    variant: type[CompensatedWeighting], expected_B: Tensor
) -> None:
    stale = stale_derivatives()
    weights = variant(XI).weigh_derivatives(stale)
    torch.testing.assert_close(weights.weights_B, expected_B)
    expected_similarity_B = CosineWeighting(XI).weigh_derivatives(stale).similarity_B
    assert torch.equal(weights.similarity_B, expected_similarity_B)


def test_with_cosine_multiplies_the_factor_by_the_weight_of_the_paper() -> None:
    stale = stale_derivatives()._replace(fresh_BD=-stale_derivatives().stale_BD)
    stale.fresh_BD[:4] = stale_derivatives().fresh_BD[:4]  # the others have turned by 180 degrees
    cosine_B = CosineWeighting(XI).weigh_derivatives(stale).weights_B
    factor_B = CompensatedWeighting(XI).weigh_derivatives(stale).weights_B
    weights_B = weightings.WithCosine(XI).weigh_derivatives(stale).weights_B
    assert torch.equal(weights_B, cosine_B * factor_B)
    assert float(weights_B[3]) == pytest.approx(1) and not weights_B[4:].any()


@pytest.mark.parametrize(
    ("variant", "weighs_as_the_paper"),
    [(weightings.UnweightedGuest, False), (weightings.WithCosine, True), (weightings.Half, True)],
)
def test_only_an_unweighted_guest_gives_every_loss_the_weight_1(
    variant: type[CompensatedWeighting], weighs_as_the_paper: bool
) -> None:
    stale = StaleLosses(torch.eye(2), torch.tensor([[1.0, 0.5], [1.0, 0.0]]))
    paper = CosineWeighting(XI).weigh_losses(stale)
    weights = variant(XI).weigh_losses(stale)
    assert torch.equal(weights.weights_B, paper.weights_B if weighs_as_the_paper else torch.ones(2))
    assert torch.equal(weights.similarity_B, paper.similarity_B)
