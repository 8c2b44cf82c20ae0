"""Noise on the rows of Z or dZ: what others use to hide features and labels.

Gaussian noise is added to clipped rows. Marvell's (Li et al., "Label Leakage and Protection in
Two-party Split Learning", ICLR 2022, section 4) makes the dZ of the two classes as alike as a power
allows. We search a grid where the authors solve for the optimum.

Marvell takes each class as normal, with the same variance in all directions, and so adds noise
across the line between the means to one class only. The dZ of a deep top has few directions: there
the noise itself marks that class, which a linear attack does not see and a network does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from celu.config.privacy import GaussianNoise, MarvellNoise
from celu.models.clipped import clip_rows
from celu.privacy.secret_key import SecretKey
from celu.privacy.secret_noise import secret_normal

_GRID = 101


@dataclass(frozen=True)
class RowNoise:
    """A contract's noise, drawn with a party's key.

    `unit` is the length that clips of 1 stand for: dZ is the derivative of a mean over a batch.
    """

    settings: GaussianNoise | MarvellNoise
    key: SecretKey
    unit: float = 1.0

    def add(self, where: str, x_BD: Tensor, is_positive_B: Tensor | None = None) -> Tensor:
        """The rows with noise; `where` names what is sent, once in a run for each message.

        Marvell needs the classes of the rows. NaN and Inf stay, and are refused when sent.
        """
        if not bool(x_BD.isfinite().all()):
            return x_BD
        normal_BD = secret_normal(self.key, where, x_BD)
        exact_BD = x_BD.detach().cpu().double()
        if isinstance(self.settings, GaussianNoise):
            noisy_BD = gaussian(exact_BD, self.settings, normal_BD, self.unit)
        else:
            assert is_positive_B is not None  # the contract was checked against the loss
            noisy_BD = marvell(exact_BD, is_positive_B.cpu(), self.settings.power, normal_BD)
        return noisy_BD.to(x_BD.dtype).to(x_BD.device)


def gaussian(x_BD: Tensor, noise: GaussianNoise, normal_BD: Tensor, unit: float = 1.0) -> Tensor:
    """Clipped rows, with noise of the same size in all directions and for all rows."""
    clip = noise.clip * unit
    return clip_rows(x_BD, clip) + noise.noise_multiplier * clip * normal_BD


def marvell(dz_BD: Tensor, is_positive_B: Tensor, power: float, normal_BD: Tensor) -> Tensor:
    """Noise of each class along the line between the means, and across it.

    A batch of one class, which has no such line, gets noise in all directions.
    """
    if bool(is_positive_B.all()) or not bool(is_positive_B.any()):
        deviation = (power * dz_BD.square().sum(1).mean() / dz_BD.shape[1]).sqrt()
        return dz_BD + deviation * normal_BD
    apart_D = dz_BD[is_positive_B].mean(0) - dz_BD[~is_positive_B].mean(0)
    apart = float(apart_D.square().sum())
    least = 1e-12 * float(dz_BD.square().mean())  # of one row, or of equal ones
    variances = [
        max(float(dz_BD[rows].var(dim=0, correction=0).mean()), least)
        for rows in (~is_positive_B, is_positive_B)
    ]
    share = float(is_positive_B.double().mean())
    along, across = _powers(apart, variances, (1 - share, share), dz_BD.shape[1], power * apart)
    along_B1 = torch.where(is_positive_B, along[1], along[0]).sqrt()[:, None]
    across_B1 = torch.where(is_positive_B, across[1], across[0]).sqrt()[:, None]
    line_D = apart_D / max(apart**0.5, 1e-30)
    on_line_BD = (normal_BD @ line_D)[:, None] * line_D
    noisy_BD: Tensor = dz_BD + along_B1 * on_line_BD + across_B1 * (normal_BD - on_line_BD)
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
