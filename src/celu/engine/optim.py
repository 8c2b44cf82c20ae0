"""The optimizers of a party, by the contract's settings.

AdaGrad and SGD take dense and sparse gradients alike. Adam does not, so embeddings with sparse
gradients get its sparse form: a step's cost follows the batch, not the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from celu.config.job import Optimizer as Settings
from celu.errors import ConfigError

# Say so explicitly: torch warns once where this is left open.
torch.sparse.check_sparse_tensor_invariants.disable()


class Optimizer:
    """All of a party's modules under one optimizer."""

    def __init__(self, modules: Iterable[nn.Module], settings: Settings) -> None:
        modules = list(modules)
        sparse_ids = {
            id(layer.weight)
            for module in modules
            for layer in module.modules()
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse
        }
        self.parameters = [p for m in modules for p in m.parameters() if p.requires_grad]
        sparse = [p for p in self.parameters if id(p) in sparse_ids]
        dense = [p for p in self.parameters if id(p) not in sparse_ids]
        self._optimizers = [o for o in _make(dense, sparse, settings) if o is not None]

    def step(self) -> None:
        """Apply the gradients, and forget them."""
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """A copy of what the optimizers remember."""
        return [deepcopy(optimizer.state_dict()) for optimizer in self._optimizers]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Go back to a state; it can be gone back to again."""
        for optimizer, remembered in zip(self._optimizers, state, strict=True):
            optimizer.load_state_dict(deepcopy(remembered))


def _make(
    dense: list[nn.Parameter], sparse: list[nn.Parameter], settings: Settings
) -> list[torch.optim.Optimizer | None]:
    if not dense and not sparse:
        return []
    if settings.name == "adagrad":
        accumulator = settings.initial_accumulator or 0.0
        return [
            torch.optim.Adagrad(
                dense + sparse, lr=settings.lr, initial_accumulator_value=accumulator
            )
        ]
    if settings.name == "sgd":
        if settings.momentum and sparse:
            raise ConfigError(
                "optimizer.momentum: expected none, as the model has sparse embeddings"
            )
        return [torch.optim.SGD(dense + sparse, lr=settings.lr, momentum=settings.momentum or 0.0)]
    return [
        torch.optim.Adam(dense, lr=settings.lr) if dense else None,
        torch.optim.SparseAdam(sparse, lr=settings.lr) if sparse else None,
    ]
