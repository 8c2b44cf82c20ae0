"""What a party brings: its modules and its rows.

The modules are any `nn.Module`: nothing to inherit, nothing to wrap. A bottom is called with the
inputs of a batch by name, `bottom(**inputs)`, and gives Z, [B, width]. The top is called with
every Z in order, `top(z_guest, z_host, ...)`: the guest's own first, if it has a bottom, then the
hosts' in the order of the contract.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from celu.data.dataset import Dataset
from celu.models.losses import Loss


@dataclass(frozen=True)
class Host:
    """A party with features only (Party A)."""

    bottom: nn.Module
    train: Dataset
    test: Dataset


@dataclass(frozen=True)
class Guest:
    """The party with labels (Party B). Without features of its own it has no bottom."""

    top: nn.Module
    loss: Loss
    train: Dataset
    test: Dataset
    bottom: nn.Module | None = None
