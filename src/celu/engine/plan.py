"""Which segment comes next, and from which state: the guest decides, and the hosts follow.

A fixed plan is part of the contract, so every party knows it. With `method = "auto"` the guest
decides at the end of each segment (`AutoPlan`) and sends the next stage in its verdict. A host
checks that stage: it must start at the host's current round or at a savepoint, within fixed bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError
from torch import Tensor

from celu.codecs.registry import find_codec
from celu.config.job import MAX_DEPTH, Choice, Job, Tuning
from celu.engine.outcome import Outcome
from celu.engine.schedule import Schedule, Segment, planned_segments
from celu.errors import CheckpointError, ConfigError, ProtocolError

# Bounds on what a guest may choose: a host caches W batches and a savepoint in memory.
MAX_W = MAX_R = 64
SAVEPOINT = "base"
# The first stage of `auto` measures with rounds in flight, which hide most of the round trips, and
# with local steps: at the third use of a batch it shows how much of a derivative is left to do.
MEASURING_ROUNDS, MEASURING_DEPTH, MEASURING_R = 16, 4, 3
SMALLEST_CODECS = {"activation": "2bit", "derivative": "2bit", "evaluation": "int8"}
# A stage is rolled back and repeated at most this many times less one.
MAX_ATTEMPTS = 5


@dataclass(frozen=True)
class Stage:
    """A segment and the state it starts from.

    Before it, in this order: the state is saved at savepoint `save`, rolled back to savepoint
    `restore`, and all savepoints are dropped if `drop_savepoints`. `reason` is for reports.
    """

    segment: Segment
    save: str | None = None
    restore: str | None = None
    drop_savepoints: bool = False
    reason: str = ""

    def to_body(self) -> dict[str, Any]:
        """The stage as JSON, for a verdict or a checkpoint."""
        segment = self.segment
        return {
            "start": segment.start,
            "stop": segment.stop,
            "tuning": segment.tuning.model_dump(include=set(Tuning.model_fields)),
            "save": self.save,
            "restore": self.restore,
            "forget": self.drop_savepoints,
        }

    @staticmethod
    def from_body(
        body: Any, round_: int, savepoints: Mapping[str, int], schedule: Schedule
    ) -> Stage:
        """The stage that a guest sent to a host after `round_` rounds, with these savepoints.

        Raises ProtocolError for anything that the host cannot do.
        """
        try:
            tuning = Tuning.model_validate(body["tuning"])
            for name in dict(tuning.codecs).values():
                find_codec(name, "codec")
            start, stop, save, restore = (body[k] for k in ("start", "stop", "save", "restore"))
        except (ValidationError, ConfigError, KeyError, TypeError) as error:
            raise ProtocolError("VERDICT: the guest did not send a valid next stage") from error
        at = {**savepoints, **({save: round_} if save == SAVEPOINT else {})}
        allowed = (
            save in (None, SAVEPOINT)
            and (restore is None or (isinstance(restore, str) and restore in at))
            and type(start) is int
            and start == (round_ if restore is None else at[restore])
            and type(stop) is int
            and start < stop <= schedule.num_rounds
            and max(tuning.for_role("host")[0], tuning.for_role("guest")[0]) <= MAX_W
            and max(tuning.for_role("host")[1], tuning.for_role("guest")[1]) <= MAX_R
        )
        if not allowed:
            raise ProtocolError(
                f"VERDICT: expected a stage from round {round_} or a savepoint of "
                f"{dict(savepoints)}, with W, R and depth of at most {MAX_W}, {MAX_R} and "
                f"{MAX_DEPTH}; got another stage"
            )
        return Stage(
            Segment(start, stop, tuning), save, restore, drop_savepoints=body.get("forget") is True
        )


class Plan(Protocol):
    """The stages of a run, one after the other."""

    is_adaptive: bool  # whether it depends on outcomes, so that the guest must send it to the hosts
    choices: list[Choice]  # the tunings of all rounds that were not rolled back, to replay the run

    def first(self) -> Stage:
        """The first stage."""
        ...

    def observe_loss(self, round_: int, loss: Tensor) -> None:
        """Called after each round with the loss of its fresh batch."""
        ...

    def observe_score(self, score: float) -> None:
        """Called after each evaluation with its objective (higher is better)."""
        ...

    def next(self, outcome: Outcome) -> Stage | None:
        """The next stage; None if the run is done."""
        ...

    def state_dict(self, round_: int) -> Any:
        """The plan's state after `round_` rounds, as JSON values for a checkpoint."""
        ...

    def load_state_dict(self, state: Any, round_: int) -> Stage | None:
        """Resume, instead of calling `first`: the stage in progress or next after `round_` rounds.

        None if the run is done. Raises CheckpointError for an invalid state.
        """
        ...


class FixedPlan:
    """The plan that the contract defines."""

    is_adaptive = False

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self._segments: Iterator[Segment] = planned_segments(job, schedule)
        self.choices: list[Choice] = []

    def first(self) -> Stage:
        """See `Plan`."""
        return Stage(next(self._segments))

    def observe_loss(self, round_: int, loss: Tensor) -> None:
        """See `Plan`; losses do not change it."""

    def observe_score(self, score: float) -> None:
        """See `Plan`; scores do not change it."""

    def next(self, outcome: Outcome | None = None) -> Stage | None:
        """See `Plan`; outcomes do not change it."""
        segment = next(self._segments, None)
        return None if segment is None else Stage(segment)

    def state_dict(self, round_: int) -> None:
        """See `Plan`; the round is enough."""

    def load_state_dict(self, state: Any, round_: int) -> Stage | None:
        """See `Plan`."""
        return next((Stage(s) for s in self._segments if round_ < s.stop), None)


def first_stage(job: Job, schedule: Schedule) -> Stage:
    """The first stage, which every party derives from the contract.

    With `auto` it measures, with the smallest messages, unless the contract fixes them, and can be
    rolled back.
    """
    if not job.auto:
        return FixedPlan(job, schedule).first()
    defaults = {
        "W": 5,
        "R": MEASURING_R,
        "depth": MEASURING_DEPTH,
        "codec": SMALLEST_CODECS,
    }
    fixed = {name: value for name, value in dict(job.tuning()).items() if name in job.given()}
    tuning = Tuning.model_validate({**defaults, **fixed})
    segment = Segment(0, min(MEASURING_ROUNDS, schedule.num_rounds), tuning)
    return Stage(segment, save=SAVEPOINT)


class HostPlan:
    """A host's plan: the contract's, or with `auto` the stages that the guest sends.

    It tracks the rounds of its savepoints, and refuses a stage that starts anywhere else. It counts
    the rounds of all stages, and refuses a guest that rolls back for ever.
    """

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self.follows_guest = job.auto
        self._schedule = schedule
        self._fixed = None if job.auto else FixedPlan(job, schedule)
        self._stage = first_stage(job, schedule)
        self._savepoints = {} if self._stage.save is None else {self._stage.save: 0}
        self._executed = _length(self._stage)  # rounds of all stages, this one included

    def first(self) -> Stage:
        """The first stage."""
        return self._stage if self._fixed is None else self._fixed.first()

    def next(self, verdict: Mapping[str, Any]) -> Stage:
        """The next stage after a verdict to continue; raises ProtocolError if there is none."""
        if self._fixed is not None:
            stage = self._fixed.next()
            if stage is None:
                raise ProtocolError("VERDICT: the guest continues although all rounds are done")
            return stage
        round_ = self._stage.segment.stop
        stage = Stage.from_body(verdict.get("next"), round_, self._savepoints, self._schedule)
        most = MAX_ATTEMPTS * self._schedule.num_rounds
        if self._executed + _length(stage) > most:
            raise ProtocolError(
                f"VERDICT: the guest has rolled back so often that the next stage would pass "
                f"{most} rounds in all; expected at most {MAX_ATTEMPTS} times the job's "
                f"{self._schedule.num_rounds} rounds"
            )
        self._executed += _length(stage)
        if stage.save is not None:
            self._savepoints[stage.save] = round_
        if stage.drop_savepoints:
            self._savepoints.clear()
        self._stage = stage
        return stage

    def state_dict(self, round_: int) -> Any:
        """The plan's state after `round_` rounds, as JSON values for a checkpoint."""
        if self._fixed is not None:
            return self._fixed.state_dict(round_)
        started = round_ > self._stage.segment.start
        stage = Stage(self._stage.segment) if started else self._stage
        return {**stage.to_body(), "executed": self._executed}

    def load_state_dict(self, state: Any, round_: int) -> Stage | None:
        """Resume, instead of calling `first`: the stage in progress or next after `round_` rounds.

        None if the run is done. Raises CheckpointError for an invalid state.
        """
        if self._fixed is not None:
            return self._fixed.load_state_dict(state, round_)
        start = state.get("start") if isinstance(state, dict) else None
        if not isinstance(start, int) or start > round_:
            raise CheckpointError("plan: the checkpoint has no stage for this round")
        try:
            self._stage = Stage.from_body(state, start, {}, self._schedule)
        except ProtocolError as error:
            raise CheckpointError(f"plan: {error}") from error
        if self._stage.save is not None:
            self._savepoints[self._stage.save] = start
        executed = state.get("executed", self._stage.segment.stop)  # older checkpoints lack it
        if type(executed) is not int or executed < 0:
            raise CheckpointError("plan: expected the number of executed rounds in the checkpoint")
        self._executed = executed
        return self._stage if round_ < self._stage.segment.stop else None


def _length(stage: Stage) -> int:
    return stage.segment.stop - stage.segment.start
