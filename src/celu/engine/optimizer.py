"""A party's optimizer, built from the contract's settings.

AdaGrad and SGD handle dense and sparse gradients. Adam does not, so embeddings with sparse
gradients use SparseAdam. The cost of their step depends on the batch size, not on the size of the
embedding table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from celu.config.job import Optimizer as Settings
from celu.engine.update_rules import Adagrad, Adam, Rule, RuleState, Sgd
from celu.errors import CheckpointError, ConfigError

_NAME = re.compile(r"(\d{1,6})\.(\d{1,9})\.(\w+)")
FlatState = dict[str, Any]  # by "<rule index>.<parameter index>.<state key>"


class Optimizer:
    """One optimizer for all modules of a party."""

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
        self._rules = _make_rules(dense, sparse, settings)

    def step(self) -> None:
        """Apply the gradients and set them to None."""
        for rule in self._rules:
            rule.step()
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> list[RuleState]:
        """A copy of the state of every rule."""
        return [_copy(rule.state()) for rule in self._rules]

    def restore(self, states: list[RuleState]) -> None:
        """Return to an earlier state, which stays valid for another `restore`; drop gradients."""
        for rule, state in zip(self._rules, states, strict=True):
            rule.load_state(_copy(state))
        for parameter in self.parameters:
            parameter.grad = None

    def unflatten_state(self, flat: FlatState) -> list[RuleState]:
        """The inverse of `flatten_state`; raises CheckpointError for another model's state."""
        states: list[RuleState] = [{} for _ in self._rules]
        for name, value in flat.items():
            found = _NAME.fullmatch(name)
            if found is None or not self._fits(int(found[1]), int(found[2]), found[3], value):
                raise CheckpointError(
                    f"optimizer.{name}: the checkpoint does not fit this model's {self._names()} "
                    "optimizer. Restore the model and settings that the run started with"
                )
            states[int(found[1])].setdefault(int(found[2]), {})[found[3]] = value
        for rule, state in zip(self._rules, states, strict=True):
            incomplete = rule.has_initial_state and len(state) < len(rule.parameters)
            if incomplete or any(values.keys() != rule.state_keys for values in state.values()):
                raise CheckpointError(
                    f"optimizer: the checkpoint's {self._names()} state is incomplete"
                )
        return states

    def _fits(self, which: int, index: int, key: str, value: Any) -> bool:
        if which >= len(self._rules):
            return False
        rule = self._rules[which]
        if index >= len(rule.parameters) or key not in rule.state_keys:
            return False
        if not isinstance(value, Tensor) or value.dim() == 0:
            return key == "step" and value is not None and bool(0 <= value <= 2**53)
        like = rule.parameters[index]
        return bool(value.shape == like.shape and value.dtype == like.dtype)

    def _names(self) -> str:
        return " and ".join(rule.name for rule in self._rules)


def flatten_state(states: list[RuleState]) -> FlatState:
    """An optimizer's state by name, as checkpoints store it."""
    return {
        f"{which}.{index}.{key}": value
        for which, state in enumerate(states)
        for index, values in state.items()
        for key, value in values.items()
    }


def _copy(state: RuleState) -> RuleState:
    return {
        index: {key: v.clone() if isinstance(v, Tensor) else v for key, v in values.items()}
        for index, values in state.items()
    }


def _make_rules(
    dense: list[nn.Parameter], sparse: list[nn.Parameter], settings: Settings
) -> list[Rule]:
    if not dense and not sparse:
        return []
    if settings.name == "adagrad":
        return [Adagrad(dense + sparse, settings.lr, settings.initial_accumulator or 0.0)]
    if settings.name == "sgd":
        if settings.momentum and sparse:
            raise ConfigError(
                "optimizer.momentum: not supported with sparse embeddings; remove it, or use "
                "dense embeddings"
            )
        return [Sgd(dense + sparse, settings.lr, settings.momentum or 0.0)]
    rules = [(dense, False), (sparse, True)]
    return [Adam(which, settings.lr, sparse=is_sparse) for which, is_sparse in rules if which]
