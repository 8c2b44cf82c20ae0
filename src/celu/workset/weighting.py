"""How far each instance of a cached batch is trusted (paper, section 3.3, algorithm 2).

The weights are constants of the update: no gradient flows through them. Shapes: B instances,
D the width of the compared statistic (Z at a host; dZ of all hosts, side by side, at the guest).
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

# Rows of dZ carry the 1/B of the mean loss and may be very small, far below the 1e-8 at which
# torch's own cosine_similarity starts to shrink its result. Ours does so where squares are no
# longer exact: a smaller bound would make cosines above 1 of rows that are all but nothing.
_SMALLEST_NORM = 1e-18


class Weights(NamedTuple):
    """The instance weights, and the similarities they came from (for the record)."""

    weights_B: Tensor
    similarity_B: Tensor


class Weighting(Protocol):
    """A weighting policy: name it in the contract as `weighting = "module:Class"`.

    It is built with the threshold: `Class(xi_degrees)`.
    """

    def __init__(self, xi_degrees: float) -> None: ...

    def weigh(self, fresh_BD: Tensor, stale_BD: Tensor) -> Weights:
        """One weight an instance, from a statistic computed now and as it was exchanged."""
        ...


class CosineWeighting:
    """The cosine between fresh and stale; zero where the angle exceeds xi."""

    def __init__(self, xi_degrees: float) -> None:
        self.floor = math.cos(math.radians(xi_degrees))

    def weigh(self, fresh_BD: Tensor, stale_BD: Tensor) -> Weights:
        """See `Weighting`. A row of zeros has no direction: its similarity is zero."""
        with torch.no_grad():
            cosine_B = (_unit_rows(fresh_BD) * _unit_rows(stale_BD)).sum(dim=1)
            return Weights(torch.where(cosine_B < self.floor, 0.0, cosine_B), cosine_B)


def _unit_rows(x_BD: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x_BD, dim=1, eps=_SMALLEST_NORM)
