"""Variants of the compensated weighting that the study compares: policies by "module:Class"."""

from __future__ import annotations

import torch

from celu.workset.weighting import (
    CompensatedWeighting,
    CosineWeighting,
    StaleDerivatives,
    StaleLosses,
    Weights,
)


class WithCosine(CompensatedWeighting):
    """The correction times the paper's weight."""

    def weigh_derivatives(self, stale: StaleDerivatives) -> Weights:
        """See `Weighting`."""
        cosine = CosineWeighting.weigh_derivatives(self, stale)
        corrected = super().weigh_derivatives(stale)
        return Weights(corrected.weights_B * cosine.weights_B, cosine.similarity_B)


class UnweightedGuest(CompensatedWeighting):
    """The correction at hosts, and weight 1 at the guest."""

    def weigh_losses(self, stale: StaleLosses) -> Weights:
        """See `Weighting`."""
        weights = CosineWeighting.weigh_losses(self, stale)
        return weights._replace(weights_B=torch.ones_like(weights.weights_B))


class Half(CompensatedWeighting):
    """The correction with the constant 0.5."""

    constant = 0.5

    def weigh_derivatives(self, stale: StaleDerivatives) -> Weights:
        """See `Weighting`."""
        return super().weigh_derivatives(stale._replace(curvature=self.constant * stale.curvature))


class Double(Half):
    """The correction with the constant 2."""

    constant = 2.0


class Fourfold(Half):
    """The correction with the constant 4."""

    constant = 4.0


class AtMostOne(CompensatedWeighting):
    """The factor clipped to [0, 1]: no derivative grows."""

    MAX_FACTOR = 1.0


class AtMostFour(CompensatedWeighting):
    """The factor clipped to [0, 4]."""

    MAX_FACTOR = 4.0


class Unclipped(CompensatedWeighting):
    """The factor as it is, with both signs."""

    MIN_FACTOR = -1e6
    MAX_FACTOR = 1e6
