"""Noise on dZ, added where a guest computes it: what others use to hide labels.

Marvell: Li et al., "Label Leakage and Protection in Two-party Split Learning" (ICLR 2022), section
4. Its noise makes the dZ of the two classes as alike as a power allows. We search a grid where the
authors solve for the optimum. `s` is the power of all noise, as a multiple of the squared distance
of the two classes' means, for Marvell and for noise of the same size in all directions.

Marvell takes each class as normal, with the same variance in all directions, and so adds noise
across the line between the means to one class only. The dZ of a deep top has few directions: there
the noise itself marks that class, which a linear attack does not see and a network does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

Noise = Callable[[Tensor, Tensor, torch.Generator], Tensor]
_GRID = 101


def isotropic(s: float, dz_BD: Tensor, is_positive_B: Tensor, random: torch.Generator) -> Tensor:
    """Noise of the same size in all directions and for all rows."""
    apart_D = dz_BD[is_positive_B].mean(0) - dz_BD[~is_positive_B].mean(0)
    deviation = (s * apart_D.square().sum() / dz_BD.shape[1]).sqrt()
    return dz_BD + deviation * torch.randn(dz_BD.shape, generator=random)


def marvell(s: float, dz_BD: Tensor, is_positive_B: Tensor, random: torch.Generator) -> Tensor:
    """Noise of each class along the line between the means, and across it."""
    apart_D = dz_BD[is_positive_B].mean(0) - dz_BD[~is_positive_B].mean(0)
    apart = float(apart_D.square().sum())
    variances = [
        float(dz_BD[rows].var(dim=0, correction=0).mean())
        for rows in (~is_positive_B, is_positive_B)
    ]
    share = float(is_positive_B.float().mean())
    along, across = _powers(apart, variances, (1 - share, share), dz_BD.shape[1], s * apart)
    along_B = torch.where(is_positive_B, along[1], along[0]).sqrt()[:, None]
    across_B = torch.where(is_positive_B, across[1], across[0]).sqrt()[:, None]
    noise_BD = torch.randn(dz_BD.shape, generator=random)
    line_D = apart_D / apart**0.5
    on_line_BD = (noise_BD @ line_D)[:, None] * line_D
    noisy_BD: Tensor = dz_BD + along_B * on_line_BD + across_B * (noise_BD - on_line_BD)
    return noisy_BD


def _powers(
    apart: float, variances: list[float], shares: tuple[float, float], width: int, power: float
) -> tuple[Tensor, Tensor]:
    """The variances of the noise along and across the line, of negatives and of positives.

    They minimize the sum of both Kullback-Leibler divergences between the classes, taken as normal
    with the same variance in all directions. Across the line only the class that varies less needs
    noise.
    """
    narrow = int(variances[1] < variances[0])
    most = min(abs(variances[0] - variances[1]), power / max(shares[narrow] * (width - 1), 1e-30))
    across_G1 = np.linspace(0, most, _GRID)[:, None]
    left_G1 = np.maximum(power - shares[narrow] * (width - 1) * across_G1, 0)
    part_1G = np.linspace(0, 1, _GRID)[None]
    along = (left_G1 * (1 - part_1G) / shares[0], left_G1 * part_1G / shares[1])
    line = [variance + noise for variance, noise in zip(variances, along, strict=True)]
    side = [np.full_like(across_G1, variance) for variance in variances]
    side[narrow] = side[narrow] + across_G1
    divergence_GG = (width - 1) * (side[0] / side[1] + side[1] / side[0])
    divergence_GG = divergence_GG + (line[0] + apart) / line[1] + (line[1] + apart) / line[0]
    row, column = np.unravel_index(int(divergence_GG.argmin()), divergence_GG.shape)
    across = [0.0, 0.0]
    across[narrow] = float(across_G1[row, 0])
    return torch.tensor([float(a[row, column]) for a in along]), torch.tensor(across)


class NoisyTop(nn.Module):
    """A top that adds noise to the derivative of the host's Z; its own weights learn without it.

    `loss` must be the guest's: its labels decide the noise.
    """

    def __init__(self, top: nn.Module, noise: Noise, seed: int) -> None:
        super().__init__()
        self._top = top
        self._noise = noise
        self._random = torch.Generator().manual_seed(seed)
        self._labels: Tensor | None = None

    def forward(self, own_BD: Tensor, z_BD: Tensor) -> Tensor:
        """The output of the top."""
        if z_BD.requires_grad:
            z_BD = z_BD.clone()  # a hook on the caller's tensor would see the sum of all uses
            z_BD.register_hook(self._add_noise)
        output: Tensor = self._top(own_BD, z_BD)
        return output

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """The log loss of each row."""
        self._labels = labels
        return nn.functional.binary_cross_entropy_with_logits(
            output.reshape(-1), labels.float(), reduction="none"
        )

    def _add_noise(self, dz_BD: Tensor) -> Tensor:
        assert self._labels is not None
        return self._noise(dz_BD, self._labels == 1, self._random)
