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
from celu.engine.observer import Observer, Record
from celu.engine.plan import MAX_DEPTH, Stage
from celu.engine.state import TrainerState
from celu.engine.state_dict import TrainerMetadata
from celu.errors import CheckpointError

# Generations to keep besides one for each checkpoint that falls into the rounds in flight: the one
# just written, the one that a slower party still writes, and one in resume_point of a damaged one.
_SPARE = 4


@dataclass(frozen=True)
class ResumePoint:
    """Where a program stands: so many rounds are done, in the course of a stage or before it.

    Without a stage the run is done.
    """

    round: int
    stage: Stage | None


class _Trainer(Protocol):
    def adopt(self, tuning: Tuning) -> None: ...
    def keep(self) -> tuple[TrainerMetadata, dict[str, Tensor]]: ...
    def go_on(self, facts: TrainerMetadata, tensors: Mapping[str, Tensor]) -> None: ...
    def unanswered_bytes(self) -> int: ...


class _Plan(Protocol):
    def first(self) -> Stage: ...
    def kept(self, round_: int) -> Any: ...
    def go_on(self, kept: Any, round_: int) -> Stage | None: ...


class _Kept(BaseModel):
    """What `state.json` holds."""

    model_config = ConfigDict(extra="forbid", strict=True)
    done: bool
    plan: Any
    trainer: TrainerMetadata
    record: Record


class Checkpointer:
    """Takes a party's checkpoints; without `checkpoints`, none."""

    def __init__(
        self,
        job: Job,
        checkpoints: Checkpoints | None,
        trainer: _Trainer,
        plan: _Plan,
        observer: Observer,
    ) -> None:
        self._every = job.checkpoint_every
        depth = MAX_DEPTH if job.auto else job.most_depth
        self._generations = depth // self._every + _SPARE
        self._checkpoints = checkpoints
        self._trainer = trainer
        self._plan = plan
        self._see = observer
        self._last = 0
        self._unannounced = False

    def begin(self, round_: int) -> ResumePoint:
        """Where to begin: at the beginning, or with everything as it was after so many rounds.

        Raises CheckpointError.
        """
        if round_ == 0 or self._checkpoints is None:
            return ResumePoint(0, self._plan.first())
        self._last = round_
        snapshot = self._checkpoints.load(round_)
        try:
            kept = _Kept.model_validate(snapshot.state)
        except ValidationError as error:
            raise CheckpointError(
                f"the checkpoint of round {round_}: expected a trainer's state, got something "
                "else; go on with the release of celu that the run began with"
            ) from error
        stage = self._plan.go_on(kept.plan, round_)
        if stage is not None and round_ > stage.segment.start:
            self._trainer.adopt(stage.segment.tuning)  # else it is adopted as the stage begins
        self._trainer.go_on(kept.trainer, snapshot.tensors)
        self._see.go_on(kept.record)
        return ResumePoint(round_, None if kept.done else stage)

    def after(self, round_: int, savepoints: Mapping[str, TrainerState]) -> None:
        """So many rounds are done: take a checkpoint if one is due; raises CheckpointError."""
        if not savepoints and round_ - self._last >= self._every:
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
            self._checkpoints.flush()

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
        self._checkpoints.save(Snapshot(round_, tensors, kept.model_dump()), self._generations)
        self._last = round_
