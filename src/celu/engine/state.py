"""A trainer's whole state as a value: taken where nothing is in flight, and gone back to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from celu.config.job import Tuning
from celu.engine.local import Workset
from celu.engine.optimizer import Optimizer
from celu.engine.plan import Stage
from celu.engine.update_rules import Memory
from celu.workset.table import Entry


@dataclass(frozen=True)
class TrainerState:
    """Weights, what the optimizer remembers, and the workset table. Randomness has no state."""

    modules: dict[str, dict[str, Tensor]]
    optimizer: list[Memory]
    table: tuple[int, list[Entry]]

    @staticmethod
    def of(
        modules: Mapping[str, nn.Module], optimizer: Optimizer, workset: Workset
    ) -> TrainerState:
        """A copy of the state as it is now."""
        weights = {
            which: {name: tensor.clone() for name, tensor in module.state_dict().items()}
            for which, module in modules.items()
        }
        return TrainerState(weights, optimizer.state(), workset.table.state())

    def bring_back(
        self, modules: Mapping[str, nn.Module], optimizer: Optimizer, workset: Workset
    ) -> None:
        """Make it the state again; it can be brought back any number of times."""
        for which, module in modules.items():
            module.load_state_dict(self.modules[which])
        optimizer.restore(self.optimizer)
        workset.table.restore(self.table)


class _Trainer(Protocol):
    def state(self) -> TrainerState: ...
    def restore(self, state: TrainerState) -> None: ...
    def adopt(self, tuning: Tuning) -> None: ...


def follow(step: Stage, trainer: _Trainer, savepoints: dict[str, TrainerState]) -> None:
    """Begin a step: save the state under a mark, go back to one, adopt the tuning."""
    if step.save is not None:
        savepoints[step.save] = trainer.state()
    if step.restore is not None:
        trainer.restore(savepoints[step.restore])
    if step.forget:
        savepoints.clear()
    trainer.adopt(step.segment.tuning)
