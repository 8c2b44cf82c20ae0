"""The weight of each instance of a stale batch (paper, section 3.3, algorithm 2).

The weights are constants of the update: no gradient flows through them. Shapes: B instances,
D the width of the compared tensor (Z at a host; dZ of all hosts, concatenated, at the guest).
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

# The mean loss scales rows of dZ by 1/B, so their norms can be far below the 1e-8 at which torch's
# cosine_similarity starts to shrink its result. With a bound below 1e-18, squares would underflow
# and cosines of nearly zero rows could exceed 1.
_MIN_NORM = 1e-18


class Weights(NamedTuple):
    """The instance weights, and the similarities they were computed from (for reports)."""

    weights_B: Tensor
    similarity_B: Tensor


class Weighting(Protocol):
    """A weighting policy: name it in the contract as `weighting = "module:Class"`.

    It is constructed with the threshold: `Class(xi_degrees)`.
    """

    def __init__(self, xi_degrees: float) -> None: ...

    def weigh(self, fresh_BD: Tensor, stale_BD: Tensor) -> Weights:
        """One weight per instance, from a tensor as recomputed now and as it was exchanged."""
        ...


class CosineWeighting:
    """The cosine similarity of fresh and stale rows; zero where the angle exceeds xi."""

    def __init__(self, xi_degrees: float) -> None:
        self.floor = math.cos(math.radians(xi_degrees))

    def weigh(self, fresh_BD: Tensor, stale_BD: Tensor) -> Weights:
        """See `Weighting`. A row of zeros has no direction: its similarity is zero."""
        with torch.no_grad():
            cosine_B = (_unit_rows(fresh_BD) * _unit_rows(stale_BD)).sum(dim=1)
            return Weights(torch.where(cosine_B < self.floor, 0.0, cosine_B), cosine_B)


def _unit_rows(x_BD: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x_BD, dim=1, eps=_MIN_NORM)
