"""A host's bottom whose Z is clipped, as `privacy.z_noise` asks for, in training and in use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Clipped(nn.Module):
    """A bottom, and the rows of its Z shortened to a length of at most `clip`."""

    def __init__(self, bottom: nn.Module, clip: float) -> None:
        super().__init__()
        self.bottom = bottom
        self.clip = clip

    def forward(self, **inputs: Tensor) -> Any:
        """Z; anything but a tensor as it is, for the caller to refuse."""
        z_BD = self.bottom(**inputs)
        return clip_rows(z_BD, self.clip) if isinstance(z_BD, Tensor) and z_BD.dim() == 2 else z_BD


def clip_rows(x_BD: Tensor, clip: float) -> Tensor:
    """The rows, shortened to a length of at most `clip`."""
    length_B1 = torch.linalg.vector_norm(x_BD, dim=1, keepdim=True)
    clipped_BD: Tensor = x_BD * (clip / length_B1.clamp_min(clip))
    return clipped_BD
