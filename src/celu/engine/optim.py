"""The optimizers of a party, by the contract's settings.

AdaGrad and SGD take dense and sparse gradients alike. Adam does not, so embeddings with sparse
gradients get its sparse form: a step's cost follows the batch, not the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from celu.config.job import Optimizer as Settings
from celu.engine.updates import Adagrad, Sgd
from celu.errors import CheckpointError, ConfigError

# Say so explicitly: torch warns once where this is left open.
torch.sparse.check_sparse_tensor_invariants.disable()

# What each keeps for a parameter; a number, a scalar, or a tensor of the parameter's shape.
_REMEMBERED: dict[type[torch.optim.Optimizer], set[str]] = {
    Adagrad: {"step", "sum"},
    Sgd: {"momentum_buffer"},
    torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.SparseAdam: {"step", "exp_avg", "exp_avg_sq"},
}
_NAME = re.compile(r"(\d{1,6})\.(\d{1,9})\.(\w+)")
Remembered = dict[str, Any]  # by "optimizer.parameter.what", counted from 0


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
            if isinstance(optimizer, Adagrad | Sgd):
                optimizer.update()
            else:
                optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> list[dict[str, Any]]:
        """A copy of what the optimizers remember."""
        return [_copy(optimizer.state_dict()) for optimizer in self._optimizers]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Go back to a state; it can be gone back to again."""
        for optimizer, remembered in zip(self._optimizers, state, strict=True):
            optimizer.load_state_dict(_copy(remembered))

    def state_of(self, remembered: Remembered) -> list[dict[str, Any]]:
        """The state that `remembered` gave the names of; raises CheckpointError if not ours."""
        states: list[dict[int, dict[str, Any]]] = [{} for _ in self._optimizers]
        for name, value in remembered.items():
            found = _NAME.fullmatch(name)
            if found is None or not self._knows(int(found[1]), int(found[2]), found[3], value):
                raise CheckpointError(
                    f"optimizer.{name}: expected what {self._names()} remembers of this model's "
                    "parameters, got something else; put back the settings that the run began with"
                )
            states[int(found[1])].setdefault(int(found[2]), {})[found[3]] = value
        for optimizer, state in zip(self._optimizers, states, strict=True):
            if any(kept.keys() != _REMEMBERED[type(optimizer)] for kept in state.values()):
                raise CheckpointError(
                    f"optimizer: expected all that {self._names()} remembers, got a part of it"
                )
        return [
            {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
            for optimizer, state in zip(self._optimizers, states, strict=True)
        ]

    def _knows(self, which: int, index: int, what: str, value: Any) -> bool:
        if which >= len(self._optimizers):
            return False
        optimizer = self._optimizers[which]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if index >= len(parameters) or what not in _REMEMBERED[type(optimizer)]:
            return False
        if not isinstance(value, Tensor) or value.dim() == 0:
            return what == "step"
        like = parameters[index]
        return bool(value.shape == like.shape and value.dtype == like.dtype)

    def _names(self) -> str:
        return " and ".join(type(optimizer).__name__ for optimizer in self._optimizers)


def remembered(state: list[dict[str, Any]]) -> Remembered:
    """A state by names, without the settings, which are the contract's."""
    return {
        f"{which}.{index}.{what}": value
        for which, optimizer in enumerate(state)
        for index, kept in optimizer["state"].items()
        for what, value in kept.items()
    }


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    """What changes is copied; the settings never do."""
    kept = {
        index: {what: v.clone() if isinstance(v, Tensor) else v for what, v in values.items()}
        for index, values in state["state"].items()
    }
    return {**state, "state": kept}


def _make(
    dense: list[nn.Parameter], sparse: list[nn.Parameter], settings: Settings
) -> list[torch.optim.Optimizer | None]:
    if not dense and not sparse:
        return []
    if settings.name == "adagrad":
        accumulator = settings.initial_accumulator or 0.0
        return [
            Adagrad(dense + sparse, lr=settings.lr, initial_accumulator_value=accumulator),
        ]
    if settings.name == "sgd":
        if settings.momentum and sparse:
            raise ConfigError(
                "optimizer.momentum: expected none, as the model has sparse embeddings"
            )
        return [Sgd(dense + sparse, lr=settings.lr, momentum=settings.momentum or 0.0)]
    return [
        torch.optim.Adam(dense, lr=settings.lr) if dense else None,
        torch.optim.SparseAdam(sparse, lr=settings.lr) if sparse else None,
    ]
