"""The weight of each instance of a stale batch.

`CosineWeighting` is the paper's (section 3.3, algorithm 2): it distrusts what has turned.
`CompensatedWeighting` corrects a stale derivative for how far Z has moved since (docs/method.md).
The weights are constants of the update: no gradient flows through them. Shapes: B instances,
D the width of Z of one host, or of all hosts, concatenated, at the guest.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

# The mean loss scales rows of dZ by 1/B, so their norms can be far below the 1e-8 at which torch's
# cosine_similarity starts to shrink its result. With a bound below 1e-18, squares would underflow
# and cosines of nearly zero rows could exceed 1.
_MIN_NORM = 1e-18


class Weights(NamedTuple):
    """The instance weights, and the similarities of fresh and stale rows (for reports)."""

    weights_B: Tensor
    similarity_B: Tensor


class StaleDerivatives(NamedTuple):
    """A host's view of a stale batch: Z now and when it was sent, and the dZ that was received.

    `curvature` is the loss's: see `celu.Loss`. dZ is the derivative of the mean loss over B rows.
    """

    fresh_BD: Tensor
    stale_BD: Tensor
    dz_BD: Tensor
    curvature: float | Tensor  # a scalar


class StaleLosses(NamedTuple):
    """The guest's view of a stale batch: dZ computed now, and when it was sent; Z is the stale."""

    fresh_BD: Tensor
    stale_BD: Tensor


class Weighting(Protocol):
    """A weighting policy: name it in the contract as `weighting = "module:Class"`.

    It is constructed with the threshold: `Class(xi_degrees)`.
    """

    def __init__(self, xi_degrees: float) -> None: ...

    def weigh_derivatives(self, stale: StaleDerivatives) -> Weights:
        """At a host: one factor for each row of dZ."""
        ...

    def weigh_losses(self, stale: StaleLosses) -> Weights:
        """At the guest: one factor for the loss of each row."""
        ...


class CosineWeighting:
    """The cosine similarity of fresh and stale rows; zero where the angle exceeds xi."""

    def __init__(self, xi_degrees: float) -> None:
        self.floor = math.cos(math.radians(xi_degrees))

    def weigh_derivatives(self, stale: StaleDerivatives) -> Weights:
        """See `Weighting`: compares Z."""
        return self._weigh(stale.fresh_BD, stale.stale_BD)

    def weigh_losses(self, stale: StaleLosses) -> Weights:
        """See `Weighting`: compares dZ."""
        return self._weigh(stale.fresh_BD, stale.stale_BD)

    def _weigh(self, fresh_BD: Tensor, stale_BD: Tensor) -> Weights:
        cosine_B = cosine_similarity(fresh_BD, stale_BD)
        return Weights(torch.where(cosine_B < self.floor, 0.0, cosine_B), cosine_B)


class CompensatedWeighting(CosineWeighting):
    """At a host, a first-order correction of dZ for the distance that Z has moved.

    The derivative at Z' is dz + H (Z' - Z) to first order. With the Gauss-Newton Hessian of the
    row's loss, estimated from its own gradient, that is dz * (1 + curvature * B * dz . (Z' - Z)): a
    factor per row that falls to 0 as Z moves as far as the derivative asked. It is clipped to
    [MIN_FACTOR, MAX_FACTOR]. The guest, which has the true loss, weights as the paper does.
    """

    MIN_FACTOR = 0.0
    MAX_FACTOR = 2.0

    def weigh_derivatives(self, stale: StaleDerivatives) -> Weights:
        """See `Weighting`."""
        with torch.no_grad():
            moved_B, cosine_B = _compare(stale)
            factor_B = 1 + stale.curvature * len(moved_B) * moved_B
            return Weights(factor_B.clamp(self.MIN_FACTOR, self.MAX_FACTOR), cosine_B)


def cosine_similarity(a_BD: Tensor, b_BD: Tensor) -> Tensor:
    """The cosine of each pair of rows, [B]. A row of zeros has no direction: 0."""
    with torch.no_grad():
        if (kernels := _kernels(a_BD, b_BD)) is not None:
            cosine_B: Tensor = kernels.cosine_similarity(a_BD, b_BD, _MIN_NORM)
            return cosine_B
        return (_unit_rows(a_BD) * _unit_rows(b_BD)).sum(dim=1)


def _compare(stale: StaleDerivatives) -> tuple[Tensor, Tensor]:
    """dZ times the distance that each row of Z has moved, and the cosine of its two values."""
    fresh_BD, stale_BD, dz_BD, _ = stale
    if (kernels := _kernels(fresh_BD, stale_BD, dz_BD)) is not None:
        found: tuple[Tensor, Tensor] = kernels.compare(fresh_BD, stale_BD, dz_BD, _MIN_NORM)
        return found
    moved_B = (dz_BD * (fresh_BD - stale_BD)).sum(dim=1)
    return moved_B, cosine_similarity(fresh_BD, stale_BD)


def _unit_rows(x_BD: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x_BD, dim=1, eps=_MIN_NORM)


def _kernels(*tensors: Tensor) -> ModuleType | None:
    """The GPU kernel, if it can be used for these tensors."""
    kernels = _gpu_similarity() if tensors[0].is_cuda else None
    return kernels if kernels is not None and all(map(kernels.fits, tensors)) else None


@cache
def _gpu_similarity() -> ModuleType | None:
    try:
        from celu.workset import gpu_similarity
    except ImportError:  # torch without Triton
        return None
    return gpu_similarity
