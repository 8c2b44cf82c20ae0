"""The paper's two top models: WDL combines Z by concatenation, DSSM by an inner product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from celu.errors import ModelError
from celu.models.tower import dense_layers


class WideDeepTop(nn.Module):
    """Concatenates all Z, then one linear layer (WDL). `outputs` is the number of classes.

    The paper's top is linear: the parties' effects add up and do not interact. Layers in `hidden`
    let them interact.
    """

    def __init__(
        self,
        z_widths: Sequence[int],
        outputs: PositiveInt = 1,
        hidden: Sequence[PositiveInt] = (),
        init_std: NonNegativeFloat | None = 0.1,
    ) -> None:
        super().__init__()
        self.layers = dense_layers([sum(z_widths), *hidden, outputs], init_std)

    def forward(self, *zs: Tensor) -> Tensor:
        """Logits, [B, outputs]."""
        logits: Tensor = self.layers(torch.cat(zs, dim=1) if len(zs) > 1 else zs[0])
        return logits


class InnerProductTop(nn.Module):
    """The inner product of the guest's tower with the sum of the hosts' (DSSM)."""

    def __init__(self, z_widths: Sequence[int]) -> None:
        super().__init__()
        if len(z_widths) < 2 or len(set(z_widths)) != 1:
            raise ModelError(
                f"dssm: expected two or more Z of the same width, got widths {list(z_widths)}"
            )

    def forward(self, z_guest: Tensor, *z_hosts: Tensor) -> Tensor:
        """Logits, [B]."""
        return (z_guest * sum(z_hosts)).sum(dim=1)
