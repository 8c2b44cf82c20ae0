"""The optimizers of a party, by the contract's settings.

AdaGrad and SGD take dense and sparse gradients alike. Adam does not, so embeddings with sparse
gradients get its sparse form: a step's cost follows the batch, not the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from celu.config.job import Optimizer as Settings
from celu.engine.update_rules import Adagrad, Adam, Memory, Rule, Sgd
from celu.errors import CheckpointError, ConfigError

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
        self._rules = _make(dense, sparse, settings)

    def step(self) -> None:
        """Apply the gradients, and forget them."""
        for rule in self._rules:
            rule.update()
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> list[Memory]:
        """A copy of what is remembered."""
        return [_copy(rule.memory()) for rule in self._rules]

    def restore(self, state: list[Memory]) -> None:
        """Go back to a state; it can be gone back to again."""
        for rule, memory in zip(self._rules, state, strict=True):
            rule.remember(_copy(memory))

    def state_of(self, remembered: Remembered) -> list[Memory]:
        """The state that `remembered` gave the names of; raises CheckpointError if not ours."""
        states: list[Memory] = [{} for _ in self._rules]
        for name, value in remembered.items():
            found = _NAME.fullmatch(name)
            if found is None or not self._knows(int(found[1]), int(found[2]), found[3], value):
                raise CheckpointError(
                    f"optimizer.{name}: expected what {self._names()} remembers of this model's "
                    "parameters, got something else; put back the settings that the run began with"
                )
            states[int(found[1])].setdefault(int(found[2]), {})[found[3]] = value
        for rule, state in zip(self._rules, states, strict=True):
            lacking = rule.of_all and len(state) < len(rule.parameters)
            if lacking or any(kept.keys() != rule.remembers for kept in state.values()):
                raise CheckpointError(
                    f"optimizer: expected all that {self._names()} remembers, got a part of it"
                )
        return states

    def _knows(self, which: int, index: int, what: str, value: Any) -> bool:
        if which >= len(self._rules):
            return False
        rule = self._rules[which]
        if index >= len(rule.parameters) or what not in rule.remembers:
            return False
        if not isinstance(value, Tensor) or value.dim() == 0:
            return what == "step"
        like = rule.parameters[index]
        return bool(value.shape == like.shape and value.dtype == like.dtype)

    def _names(self) -> str:
        return " and ".join(rule.name for rule in self._rules)


def remembered(state: list[Memory]) -> Remembered:
    """A state by names."""
    return {
        f"{which}.{index}.{what}": value
        for which, memory in enumerate(state)
        for index, kept in memory.items()
        for what, value in kept.items()
    }


def _copy(memory: Memory) -> Memory:
    return {
        index: {what: v.clone() if isinstance(v, Tensor) else v for what, v in kept.items()}
        for index, kept in memory.items()
    }


def _make(dense: list[nn.Parameter], sparse: list[nn.Parameter], settings: Settings) -> list[Rule]:
    if not dense and not sparse:
        return []
    if settings.name == "adagrad":
        return [Adagrad(dense + sparse, settings.lr, settings.initial_accumulator or 0.0)]
    if settings.name == "sgd":
        if settings.momentum and sparse:
            raise ConfigError(
                "optimizer.momentum: expected none, as the model has sparse embeddings"
            )
        return [Sgd(dense + sparse, settings.lr, settings.momentum or 0.0)]
    rules = [(dense, False), (sparse, True)]
    return [Adam(which, settings.lr, sparse=is_sparse) for which, is_sparse in rules if which]
