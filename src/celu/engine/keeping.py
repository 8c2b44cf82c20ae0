"""When checkpoints are taken, and how a program goes on from one.

The position is the number of rounds done, so a checkpoint falls between two rounds; at the end of a
segment, once it is decided what comes next. All parties follow the same rule, so they take theirs
at the same rounds: where `every` rounds have passed since the last one, but never while a state is
held at a mark, for then rounds may be undone; and one at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.config.job import Job, Tuning
from celu.engine.kept import TrainerFacts
from celu.engine.observe import Observer, Record
from celu.engine.plan import MOST_DEPTH, Step
from celu.engine.state import TrainerState
from celu.errors import CheckpointError

# Generations to keep besides one for each checkpoint that falls into the rounds in flight: the one
# just written, the one that a slower party still writes, and one in place of a damaged one.
_SPARE = 4


@dataclass(frozen=True)
class Place:
    """Where a program stands: so many rounds are done, in the course of a step or before it.

    Without a step the run is done.
    """

    round: int
    step: Step | None


class _Trainer(Protocol):
    def adopt(self, tuning: Tuning) -> None: ...
    def keep(self) -> tuple[TrainerFacts, dict[str, Tensor]]: ...
    def go_on(self, facts: TrainerFacts, tensors: Mapping[str, Tensor]) -> None: ...
    def unanswered_bytes(self) -> int: ...


class _Plan(Protocol):
    def first(self) -> Step: ...
    def kept(self, round_: int) -> Any: ...
    def go_on(self, kept: Any, round_: int) -> Step | None: ...


class _Kept(BaseModel):
    """What `state.json` holds."""

    model_config = ConfigDict(extra="forbid", strict=True)
    done: bool
    plan: Any
    trainer: TrainerFacts
    record: Record


class Keeper:
    """Takes a party's checkpoints; without `checkpoints`, none."""

    def __init__(
        self,
        job: Job,
        checkpoints: Checkpoints | None,
        trainer: _Trainer,
        plan: _Plan,
        see: Observer,
    ) -> None:
        self._every = job.checkpoint_every
        depth = MOST_DEPTH if job.auto else job.most_depth
        self._generations = depth // self._every + _SPARE
        self._checkpoints = checkpoints
        self._trainer = trainer
        self._plan = plan
        self._see = see
        self._last = 0
        self._unannounced = False

    def begin(self, round_: int) -> Place:
        """Where to begin: at the beginning, or with everything as it was after so many rounds.

        Raises CheckpointError.
        """
        if round_ == 0 or self._checkpoints is None:
            return Place(0, self._plan.first())
        self._last = round_
        snapshot = self._checkpoints.load(round_)
        try:
            kept = _Kept.model_validate(snapshot.state)
        except ValidationError as error:
            raise CheckpointError(
                f"the checkpoint of round {round_}: expected a trainer's state, got something "
                "else; go on with the release of celu that the run began with"
            ) from error
        step = self._plan.go_on(kept.plan, round_)
        if step is not None and round_ > step.segment.start:
            self._trainer.adopt(step.segment.tuning)  # else it is adopted as the step begins
        self._trainer.go_on(kept.trainer, snapshot.tensors)
        self._see.go_on(kept.record)
        return Place(round_, None if kept.done else step)

    def after(self, round_: int, marks: Mapping[str, TrainerState]) -> None:
        """So many rounds are done: take a checkpoint if one is due; raises CheckpointError."""
        if not marks and round_ - self._last >= self._every:
            self._take(round_, done=False)
            self._unannounced = self._checkpoints is not None

    def announce(self) -> None:
        """Say that a checkpoint was taken, if one was: once all others can take theirs.

        Who wants to stop at a checkpoint does so here.
        """
        if self._unannounced:
            self._unannounced = False
            self._see.kept(self._last)

    def at_the_end(self, round_: int) -> None:
        """The run is done: keep how it ended; raises CheckpointError."""
        self._take(round_, done=True)

    def settle(self) -> None:
        """Wait until all that was taken is on disk; raises CheckpointError."""
        if self._checkpoints is not None:
            self._checkpoints.settle()

    def _take(self, round_: int, *, done: bool) -> None:
        if self._checkpoints is None:
            return
        facts, tensors = self._trainer.keep()
        kept = _Kept(
            done=done,
            plan=self._plan.kept(round_),
            trainer=facts,
            record=self._see.record(self._trainer.unanswered_bytes()),
        )
        self._checkpoints.keep(Snapshot(round_, tensors, kept.model_dump()), self._generations)
        self._last = round_
