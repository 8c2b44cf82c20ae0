"""When a party takes checkpoints, and how it resumes from one.

A checkpoint is taken between two rounds and identified by the number of finished rounds. At the end
of a segment it is taken after the next stage is known. All parties apply the same rule, so they
take checkpoints after the same rounds: when `every` rounds have passed since the last checkpoint,
and at the end of the run. While there are savepoints they take none, since rounds may be rolled
back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.shards import Share
from celu.config.job import MAX_DEPTH, Job, Tuning
from celu.engine.best import PREFIX, Best, BestMetadata
from celu.engine.observer import Observer, ProgressState
from celu.engine.plan import Stage
from celu.engine.state import TrainerState
from celu.engine.state_dict import TrainerMetadata
from celu.errors import CheckpointError, NonFiniteError

# Checkpoints to retain in addition to those that parties may be apart: spares in case of damage.
_SPARE_GENERATIONS = 2


def max_apart(job: Job) -> int:
    """How many checkpoints one party may have that another, stopped at another moment, lacks.

    Those of the rounds in flight, the newest, and one that the other party was still writing.
    """
    return (MAX_DEPTH if job.auto else job.max_depth) // job.checkpoint_every + 2


@dataclass(frozen=True)
class ResumePoint:
    """Where training starts: after `round` rounds, at the start or in the middle of a stage.

    Without a stage the run is already done.
    """

    round: int
    stage: Stage | None
    slices: int | None = None  # in which the run so far computed each batch, of a loaded checkpoint


class _Trainer(Protocol):
    best: Best

    def apply_tuning(self, tuning: Tuning) -> None: ...
    def state_dict(self) -> tuple[TrainerMetadata, dict[str, Tensor]]: ...
    def load_state_dict(self, metadata: TrainerMetadata, tensors: Mapping[str, Tensor]) -> None: ...
    def final_tensors(self) -> dict[str, Tensor]: ...
    def parameter_names(self) -> set[str]: ...
    @property
    def optimizer_prefix(self) -> str: ...
    def repeated_bytes(self) -> dict[str, int]: ...
    def share(self) -> Share: ...
    def which_anywhere(self, found: Sequence[bool]) -> list[bool]: ...


class _Plan(Protocol):
    def first(self) -> Stage: ...
    def state_dict(self, round_: int) -> Any: ...
    def load_state_dict(self, state: Any, round_: int) -> Stage | None: ...


class _CheckpointState(BaseModel):
    """The contents of `state.json`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    done: bool
    plan: Any
    trainer: TrainerMetadata
    record: ProgressState
    best: BestMetadata | None = None  # absent while no evaluation of validation rows was best
    slices: int = 1  # in which each batch was computed; absent if 1


class Checkpointer:
    """Takes a party's checkpoints and resumes from them; does nothing without `checkpoints`."""

    def __init__(
        self,
        job: Job,
        checkpoints: Checkpoints | None,
        trainer: _Trainer,
        plan: _Plan,
        observer: Observer,
        slices: int = 1,
    ) -> None:
        self._slices = slices
        self._every = job.checkpoint_every
        self._generations = max_apart(job) + _SPARE_GENERATIONS
        self._checkpoints = checkpoints
        self._trainer = trainer
        self._plan = plan
        self._observer = observer
        self._last = 0
        self._unannounced = False

    def resume(self, round_: int, shorter: int | None = None) -> ResumePoint:
        """Load the checkpoint after `round_` rounds; for round 0, start at the first stage.

        `shorter` is the length of the run when it was written, if the run was extended since: a
        run that was done then is not done now. Raises CheckpointError.
        """
        if round_ == 0 or self._checkpoints is None:
            return ResumePoint(0, self._plan.first())
        self._last = round_
        snapshot = self._checkpoints.load(round_, self._trainer.share())
        try:
            state = _CheckpointState.model_validate(snapshot.state)
        except ValidationError as error:
            raise CheckpointError(
                f"the checkpoint of round {round_} has another format; resume with the release of "
                "celu that the run started with"
            ) from error
        stage = self._plan.load_state_dict(state.plan, round_)
        if stage is not None and round_ > stage.segment.start:
            self._trainer.apply_tuning(stage.segment.tuning)  # otherwise `enter_stage` applies it
        if found := self._non_finite(snapshot.tensors):
            raise CheckpointError(
                f"the checkpoint of round {round_}: {found} contain NaN or Inf, which celu never "
                "writes; remove the checkpoint, and start again to resume from the previous one"
            )
        tensors = dict(snapshot.tensors)
        if state.best is not None:
            names = [name for name in tensors if name.startswith(PREFIX)]
            best = {name: tensors.pop(name) for name in names}
            self._trainer.best.load_state_dict(state.best, best)
        self._trainer.load_state_dict(state.trainer, tensors)
        self._observer.load_progress(state.record)
        if state.done and shorter is not None and round_ < shorter:  # it had stopped early
            self._trainer.best.forget_worse()
        is_done = state.done and shorter is None
        return ResumePoint(round_, None if is_done else stage, state.slices)

    def maybe_save(self, round_: int, savepoints: Mapping[str, TrainerState]) -> None:
        """Take a checkpoint after `round_` rounds if one is due.

        Raises CheckpointError, and NonFiniteError instead of writing a state that has diverged.
        """
        self.save(self.maybe_capture(round_, savepoints))

    def maybe_capture(self, round_: int, savepoints: Mapping[str, TrainerState]) -> Snapshot | None:
        """Copy the state after `round_` rounds if a checkpoint is due, for a later `save`.

        Raises NonFiniteError for a state that has diverged.
        """
        is_due = not savepoints and round_ - self._last >= self._every
        return self._capture(round_, done=False) if is_due else None

    def save(self, snapshot: Snapshot | None) -> None:
        """Take a checkpoint of what `maybe_capture` returned; raises CheckpointError.

        The best model is added as it is now: the verdict of that round's evaluation is known.
        """
        self._write(snapshot)
        self._unannounced = self._unannounced or snapshot is not None

    def announce(self) -> None:
        """Emit the event of a checkpoint that `maybe_save` took.

        It is called when the other parties can take theirs too, so a process may be stopped on
        this event.
        """
        if self._unannounced:
            self._unannounced = False
            self._observer.checkpoint_taken(self._last)

    def save_final(self, round_: int) -> None:
        """Take the last checkpoint of a finished run; raises what `maybe_save` raises."""
        self._write(self._capture(round_, done=True))

    def flush(self) -> None:
        """Wait until all checkpoints are on disk; raises CheckpointError."""
        if self._checkpoints is not None:
            self._checkpoints.flush()

    def _write(self, snapshot: Snapshot | None) -> None:
        if self._checkpoints is not None and snapshot is not None:
            self._checkpoints.save(_with_best(snapshot, self._trainer.best), self._generations)
            self._last = snapshot.round

    def _checked(self, tensors: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
        """The tensors that must be finite; a buffer may hold Inf on purpose: a mask."""
        parameters, prefix = self._trainer.parameter_names(), self._trainer.optimizer_prefix
        return {
            "the weights": [t for name, t in tensors.items() if name in parameters],
            "the optimizer's state": [t for name, t in tensors.items() if name.startswith(prefix)],
        }

    def _non_finite(self, tensors: Mapping[str, Tensor]) -> str | None:
        """The first group of tensors that holds NaN or Inf, at any rank."""
        checked = self._checked(tensors)
        found = self._trainer.which_anywhere([_has_non_finite(t) for t in checked.values()])
        return next((what for what, is_bad in zip(checked, found, strict=True) if is_bad), None)

    def _capture(self, round_: int, *, done: bool) -> Snapshot | None:
        if self._checkpoints is None:
            return None
        metadata, tensors = self._trainer.state_dict()
        if done:
            tensors |= self._trainer.final_tensors()
        if found := self._non_finite(tensors):
            raise NonFiniteError(
                f"after {round_} rounds {found} contained NaN or Inf; no checkpoint was written. "
                "Earlier checkpoints are intact. Look for extreme values in the inputs or from a "
                "peer, and start again to resume from the last one; or lower the learning rate in "
                "a new run"
            )
        state = _CheckpointState(
            done=done,
            plan=self._plan.state_dict(round_),
            trainer=metadata,
            record=self._observer.progress({} if done else self._trainer.repeated_bytes()),
            slices=self._slices,
        )
        absent = {"best", "slices"} if self._slices == 1 else {"best"}
        state_json = state.model_dump(exclude=absent)
        return Snapshot(round_, tensors, state_json, self._trainer.share())


def _with_best(snapshot: Snapshot, best: Best) -> Snapshot:
    if (contents := best.state_dict()) is None:
        return snapshot
    metadata, tensors = contents
    return replace(
        snapshot,
        tensors={**snapshot.tensors, **tensors},
        state={**snapshot.state, "best": metadata.model_dump()},
    )


def _has_non_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether a tensor holds NaN or Inf."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    # A sum is finite only if every term is; one stack, so that a GPU synchronizes once.
    sums = torch.stack([tensor.sum().float() for tensor in floats] or [torch.zeros(())])
    if bool(torch.isfinite(sums).all()):
        return False
    # A sum may overflow although every term is finite.
    return not all(bool(torch.isfinite(tensor).all()) for tensor in floats)
