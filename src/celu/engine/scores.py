"""The scores of some held-out rows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Scores(NamedTuple):
    """The model's output for some rows, with losses and labels, all on the CPU."""

    output: Tensor
    losses_B: Tensor
    labels: Tensor
    weights_B: Tensor | None = None  # of the rows, if they have any
    twin: Scores | None = None  # those of the guest's twin, against randomized labels
