"""The best model so far, by the contract's metric on validation rows: its round and its weights.

The guest decides after each evaluation. Its verdict says so to the hosts, whose weights are still
those that were evaluated, and every party copies its own. It does not compute metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import BaseModel, ConfigDict, FiniteFloat
from torch import Tensor, nn

from celu.engine.checkpoint_tensors import CheckpointTensors
from celu.events import Count

PREFIX = "best."  # of the tensors in a checkpoint
Weights = dict[str, dict[str, Tensor]]  # by module and name


def copy_weights(modules: Mapping[str, nn.Module]) -> Weights:
    """A copy of all parameters and buffers."""
    return {
        which: {name: tensor.clone() for name, tensor in module.state_dict().items()}
        for which, module in modules.items()
    }


class BestMetadata(BaseModel):
    """What a checkpoint says about the best model beside its tensors; a file format."""

    model_config = ConfigDict(extra="forbid", strict=True)
    round: Count
    score: FiniteFloat | None
    num_worse: Count


@dataclass(frozen=True)
class BestModel:
    """A copy of the weights after `round` rounds; it is never modified.

    `score` is the objective of its evaluation (higher is better) and `num_worse` counts the
    evaluations since then; hosts know neither.
    """

    round: int
    weights: Weights
    score: float | None = None
    num_worse: int = 0


class Best:
    """The best model of a party so far, if any; part of every checkpoint."""

    def __init__(self, modules: Mapping[str, nn.Module], device: torch.device) -> None:
        self._modules = modules
        self._device = device
        self.model: BestModel | None = None

    def keep(
        self, round_: int, score: float | None = None, buffers: Mapping[str, Tensor] | None = None
    ) -> None:
        """Copy the current weights: those of the best evaluation, after `round_` rounds.

        `buffers`, by module and name, replace those that later forward passes have changed.
        """
        weights = copy_weights(self._modules)
        for key, buffer in (buffers or {}).items():
            which, _, name = key.partition(".")
            if name in weights[which]:  # a buffer that is not persistent is no part of a model
                weights[which][name] = buffer
        self.model = BestModel(round_, weights, score)

    def count_worse(self) -> None:
        """Count an evaluation that was not better."""
        if self.model is not None:
            self.model = replace(self.model, num_worse=self.model.num_worse + 1)

    def forget_worse(self) -> None:
        """Count evaluations without an improvement from 0: a person continues the run."""
        if self.model is not None:
            self.model = replace(self.model, num_worse=0)

    def restore(self) -> int | None:
        """Make the best weights the current ones and return their round; None if there are none."""
        if self.model is None:
            return None
        for which, module in self._modules.items():
            module.load_state_dict(self.model.weights[which])
        return self.model.round

    def state_dict(self) -> tuple[BestMetadata, dict[str, Tensor]] | None:
        """The contents of a checkpoint; None if there is no best model."""
        if self.model is None:
            return None
        model = self.model
        tensors = {
            f"{PREFIX}{which}.{name}": tensor
            for which, weights in model.weights.items()
            for name, tensor in weights.items()
        }
        metadata = BestMetadata(round=model.round, score=model.score, num_worse=model.num_worse)
        return metadata, tensors

    def load_state_dict(self, metadata: BestMetadata, tensors: Mapping[str, Tensor]) -> None:
        """Load from a checkpoint; raises CheckpointError if the modules do not fit."""
        checkpoint = CheckpointTensors(tensors, self._device)
        weights = checkpoint.pop_weights(PREFIX, self._modules)
        checkpoint.check_empty()
        self.model = BestModel(metadata.round, weights, metadata.score, metadata.num_worse)
