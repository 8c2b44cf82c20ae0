"""The models of `scripts/bench step`, for both sides of each comparison."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ThinBottom(nn.Module):
    """One linear layer over the numbers: almost no computing, so that messages dominate."""

    def __init__(self, z_width: int, columns: dict[str, int]) -> None:
        super().__init__()
        self.layer = nn.Linear(columns["numbers"], z_width, bias=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Z."""
        z: Tensor = self.layer(numbers)
        return z


class ThinTop(nn.Module):
    """One linear layer over all Z."""

    def __init__(self, z_widths: Sequence[int]) -> None:
        super().__init__()
        self.layer = nn.Linear(sum(z_widths), 1, bias=False)

    def forward(self, *zs: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.layer(torch.cat(zs, dim=1))
        return logits
