"""A party's optimizer, built from the contract's settings.

AdaGrad and SGD handle dense and sparse gradients. Adam does not, so embeddings with sparse
gradients use SparseAdam. The cost of their step depends on the batch size, not on the size of the
embedding table. AdamW is Adam after the weights have decayed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from celu.config.optimizer import Optimizer as Settings
from celu.engine import update_rules
from celu.engine.gradients import add_decay, clip_gradients, decay_weights
from celu.engine.learning_rate import LearningRate
from celu.engine.update_rules import Rule, RuleState
from celu.errors import CheckpointError, ConfigError
from celu.kernels import find_kernels
from celu.ranks.own_rows import OwnRows, leaf_of

_NAME = re.compile(r"(\d{1,6})\.(\d{1,9})\.(\w+)")
FlatState = dict[str, Any]  # by "<rule index>.<parameter index>.<state key>"


class Optimizer:
    """One optimizer for all modules of a party."""

    def __init__(
        self, modules: Iterable[nn.Module], settings: Settings, party: str, num_rounds: int
    ) -> None:
        """Start with the rates of round 0; raises ConfigError for settings that do not fit."""
        modules = list(modules)
        layers = [
            layer
            for module in modules
            for layer in module.modules()
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        ]
        embeddings = {id(layer.weight) for layer in layers}
        sparse = {id(layer.weight) for layer in layers if layer.sparse}
        self._settings = settings
        self._rate = LearningRate(settings, party, num_rounds)
        self.parameters = [p for m in modules for p in m.parameters() if p.requires_grad]
        if settings.clip_norm is not None and any(isinstance(p, OwnRows) for p in self.parameters):
            raise ConfigError(
                "optimizer.clip_norm: not supported with sharded embedding tables, of whose "
                "gradient a rank has a part; remove it, or set shard = false in [model]"
            )
        # Parameters with one rate share a rule, dense ones first, as in checkpoints.
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for parameter in sorted(self.parameters, key=lambda p: id(p) in sparse):
            is_embedding, is_sparse = id(parameter) in embeddings, id(parameter) in sparse
            if is_sparse and settings.momentum:
                raise ConfigError(
                    "optimizer.momentum: not supported with sparse embeddings; remove it, or use "
                    "dense embeddings (of a resnet without ids: recurring = 0)"
                )
            base = self._rate.base_of_embeddings if is_embedding else self._rate.base
            groups.setdefault((base, is_sparse and _is_adam(settings)), []).append(parameter)
        self._base_rates = [base for base, _ in groups]
        self._factor: float | None = None  # of the rates that the rules have now
        self._rules = [
            _make_rule(parameters, base, settings, sparse=is_sparse)
            for (base, is_sparse), parameters in groups.items()
        ]
        self.set_round(0)

    @property
    def leaves(self) -> list[Tensor]:
        """Where autograd leaves the gradients of the parameters."""
        return [leaf_of(parameter) for parameter in self.parameters]

    @property
    def is_in_place(self) -> bool:
        """Whether a step that is repeated uses the rate and the state of then: see `Rule`."""
        return all(rule.is_in_place for rule in self._rules)

    def shards(self) -> dict[str, OwnRows]:
        """The sharded parameters, by how the names of their state start in `flatten_state`."""
        return {
            f"{which}.{index}.": parameter
            for which, rule in enumerate(self._rules)
            for index, parameter in enumerate(rule.parameters)
            if isinstance(parameter, OwnRows)
        }

    def set_round(self, round_: int) -> None:
        """Use the learning rates of this round from now on."""
        factor = self._rate.factor(round_)
        self.lr = self._rate.base * factor  # of what is no embedding
        if factor == self._factor:  # as in most rounds: a rate on a device takes a while to set
            return
        self._factor = factor
        for rule, base in zip(self._rules, self._base_rates, strict=True):
            rule.lr = base * factor

    def step(self) -> None:
        """Apply the gradients and set them to None."""
        if self._settings.clip_norm is not None:
            clip_gradients(self.parameters, self._settings.clip_norm)
        decay = self._settings.decay
        for rule in self._rules:
            if decay and self._settings.name == "adamw":
                decay_weights(rule.parameters, rule.lr * decay)
            elif decay:
                add_decay(rule.parameters, decay)
            rule.step()
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self) -> list[Tensor]:
        """The tensors that steps change in place, besides the parameters."""
        states = [values for rule in self._rules for values in rule.state().values()]
        return [v for values in states for v in values.values() if isinstance(v, Tensor)]

    def state(self) -> list[RuleState]:
        """A copy of the state of every rule."""
        return [_copy(rule.state()) for rule in self._rules]

    def restore(self, states: list[RuleState]) -> None:
        """Return to an earlier state, which stays valid for another `restore`; drop gradients."""
        self._factor = None  # a rule may return to the rate that it was made with
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


def _is_adam(settings: Settings) -> bool:
    return settings.name in ("adam", "adamw")


def _make_rule(
    parameters: list[nn.Parameter], lr: float, settings: Settings, *, sparse: bool
) -> Rule:
    rules = _rules_for(parameters)
    rule: Rule
    if settings.name == "adagrad":
        rule = rules.Adagrad(parameters, lr, settings.initial_accumulator or 0.0)
    elif settings.name == "sgd":
        rule = rules.Sgd(parameters, lr, settings.momentum or 0.0)
    else:
        rule = (rules.SparseAdam if sparse else rules.Adam)(parameters, lr)
    return rule


def _rules_for(parameters: list[nn.Parameter]) -> ModuleType:
    """The module with the update rules of these parameters."""
    if not all(p.is_cuda and p.dtype == torch.float32 for p in parameters):
        return update_rules
    return find_kernels("celu.engine.gpu_update_rules") or update_rules
