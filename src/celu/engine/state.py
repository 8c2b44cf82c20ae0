"""A trainer's state in memory: captured when nothing is in flight, restored to roll back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import nn

from celu.config.job import Tuning
from celu.engine.best import Best, Weights, copy_weights
from celu.engine.optimizer import Optimizer
from celu.engine.plan import SAVEPOINT, Stage
from celu.engine.update_rules import RuleState
from celu.errors import NonFiniteError
from celu.workset.table import Entry
from celu.workset.workset import Workset

_T = TypeVar("_T")


@dataclass(frozen=True)
class TwinState:
    """Weights and optimizer state of a guest's twin."""

    modules: Weights
    optimizer: list[RuleState]


@dataclass(frozen=True)
class TrainerState:
    """Weights, optimizer state and workset table. Randomness has no state: see `seed_step`."""

    modules: Weights
    optimizer: list[RuleState]
    table: tuple[int, list[Entry]]
    twin: TwinState | None = None

    @staticmethod
    def capture(
        modules: Mapping[str, nn.Module], optimizer: Optimizer, workset: Workset
    ) -> TrainerState:
        """A copy of the current state."""
        return TrainerState(copy_weights(modules), optimizer.state(), workset.table.state())

    def restore(
        self, modules: Mapping[str, nn.Module], optimizer: Optimizer, workset: Workset
    ) -> None:
        """Make this the current state; it stays valid for another `restore`."""
        for which, module in modules.items():
            module.load_state_dict(self.modules[which])
        optimizer.restore(self.optimizer)
        workset.table.restore(self.table)


class _Trainer(Protocol):
    best: Best

    def state(self) -> TrainerState: ...
    def roll_back(self, state: TrainerState) -> None: ...
    def apply_tuning(self, tuning: Tuning) -> None: ...


def enter_stage(stage: Stage, trainer: _Trainer, savepoints: dict[str, TrainerState]) -> None:
    """Set or roll back to savepoints as the stage asks, then apply its tuning."""
    if stage.save is not None:
        savepoints[stage.save] = trainer.state()
    if stage.restore is not None:
        trainer.roll_back(savepoints[stage.restore])
        trainer.best.model = None  # savepoints are of round 0, before all evaluations
    if stage.drop_savepoints:
        savepoints.clear()
    trainer.apply_tuning(stage.segment.tuning)


def compute_finite(
    compute: Callable[[], _T],
    trainer: _Trainer,
    savepoints: Mapping[str, TrainerState],
    on_divergence: Callable[[], None],
) -> _T:
    """The result of `compute`; if it raises NonFiniteError, once more from the savepoint.

    With weights that have diverged a party cannot send anything. If the stage can be rolled back,
    it continues with the weights of the savepoint, so that all parties reach the end of the stage,
    and `on_divergence` is called: the guest then rolls everyone back.
    """
    try:
        return compute()
    except NonFiniteError:
        if SAVEPOINT not in savepoints:
            raise
        on_divergence()
        trainer.roll_back(savepoints[SAVEPOINT])
        return compute()
