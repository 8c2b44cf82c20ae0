"""Which segment comes next, and from which state: what the guest decides and its hosts follow.

A written plan is the contract's, and every party knows it. Where the contract says `auto`, the
guest decides at the end of each segment (`auto`) and tells the hosts with its verdict. A host
checks what it is told: it goes on from a round that it is at, or was at, within fixed bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

from pydantic import ValidationError

from celu.codecs.named import find_codec
from celu.config.job import Choice, Job, Tuning
from celu.engine.schedule import Schedule, Segment, planned_segments
from celu.errors import CheckpointError, ConfigError, ProtocolError

# What a guest may choose; a host keeps W batches, and holds states at the two savepoints in memory.
MAX_W = MAX_R = MAX_DEPTH = 64
SAVEPOINTS = ("base", "best")
MEASURED_ROUNDS = 4


@dataclass(frozen=True)
class Stage:
    """A segment to be done, after the state was saved under one mark and fetched from another.

    `forget` drops all savepoints then; `reason` is for the record.
    """

    segment: Segment
    save: str | None = None
    restore: str | None = None
    forget: bool = False
    reason: str = ""

    def to_body(self) -> dict[str, Any]:
        """What a verdict says of it."""
        segment = self.segment
        return {
            "start": segment.start,
            "stop": segment.stop,
            "tuning": segment.tuning.model_dump(include=set(Tuning.model_fields)),
            "scored": segment.scored,
            "save": self.save,
            "restore": self.restore,
            "forget": self.forget,
        }

    @staticmethod
    def from_body(body: Any, here: int, savepoints: Mapping[str, int], schedule: Schedule) -> Stage:
        """What a guest told a host that is at round `here` and has `savepoints` at these rounds.

        Raises ProtocolError for anything that cannot be followed.
        """
        try:
            tuning = Tuning.model_validate(body["tuning"])
            for name in dict(tuning.codecs).values():
                find_codec(name, "codec")
            start, stop, save, restore = (body[k] for k in ("start", "stop", "save", "restore"))
        except (ValidationError, ConfigError, KeyError, TypeError) as error:
            raise ProtocolError("VERDICT: expected what to do next, got no such thing") from error
        at = {**savepoints, **({save: here} if save in SAVEPOINTS else {})}
        allowed = (
            (save is None or save in SAVEPOINTS)
            and (restore is None or (isinstance(restore, str) and restore in at))
            and type(start) is int
            and start == (here if restore is None else at[restore])
            and type(stop) is int
            and start < stop <= schedule.num_rounds
            and max(tuning.for_role("host")[0], tuning.for_role("guest")[0]) <= MAX_W
            and max(tuning.for_role("host")[1], tuning.for_role("guest")[1]) <= MAX_R
            and tuning.depth <= MAX_DEPTH
        )
        if not allowed:
            raise ProtocolError(
                f"VERDICT: expected to go on from round {here} or a mark in {dict(savepoints)}, with "
                f"W, R and depth of at most {MAX_W}, {MAX_R} and {MAX_DEPTH}; got another order"
            )
        segment = Segment(start, stop, tuning, scored=body.get("scored") is True)
        return Stage(segment, save, restore, forget=body.get("forget") is True)


@dataclass(frozen=True)
class Timings:
    """How a party spent its time in a segment's rounds, and how fast what it received came.

    `transfer_s` is the time between the first and the last byte of `transfer_bytes` in messages.
    """

    rounds: int
    seconds: float
    waited_s: float
    local_s: float
    local_steps: int
    transfer_s: float
    transfer_bytes: int

    @property
    def exchange_s(self) -> float:
        """What a round costs this party besides its local steps."""
        return max(0.0, self.seconds - self.waited_s - self.local_s) / self.rounds

    @property
    def step_s(self) -> float:
        """What a local stage costs; where none was made, as much as a round's exchange."""
        return self.local_s / self.local_steps if self.local_steps else self.exchange_s

    @property
    def byte_s(self) -> float:
        """What a received byte cost in time on the line."""
        return self.transfer_s / self.transfer_bytes if self.transfer_bytes else 0.0

    def to_body(self) -> dict[str, Any]:
        """What a host reports."""
        return asdict(self)

    @staticmethod
    def from_body(body: Any, rounds: int) -> Timings:
        """What a host reported; raises ProtocolError."""
        types = {field.name: int if field.type == "int" else float for field in fields(Timings)}
        valid = isinstance(body, dict) and body.keys() == types.keys()
        if not valid or not all(_is_a(types[name], value) for name, value in body.items()):
            raise ProtocolError("REPORT: expected how the host spent its time, got no such thing")
        return replace(Timings(**body), rounds=rounds)


def _is_a(kind: type, value: Any) -> bool:
    """Whether a claim is a number of this kind, and one that can be reckoned with.

    A count must be whole: divided by the smallest of fractions, seconds would become infinite.
    """
    return type(value) in {int, kind} and 0 <= value <= 1e15


@dataclass(frozen=True)
class Outcome:
    """What the guest knows at a segment's end.

    How well held-out rows were foretold, if it was scored, and each fresh batch, if it was judged
    (in the contract's metric, higher is better); and everybody's times.
    """

    segment: Segment
    held_out: float | None
    fresh: list[float]
    guest: Timings
    hosts: tuple[Timings, ...]


class Plan(Protocol):
    """What to do, stage by stage."""

    chooses: bool  # whether it depends on outcomes, so that hosts must be told
    choices: list[Choice]  # the tunings of the rounds that count: with these a run can be repeated

    def first(self) -> Stage:
        """The first stage."""
        ...

    def after(self, outcome: Outcome) -> Stage | None:
        """The next one; None where the run is done."""
        ...

    def kept(self, round_: int) -> Any:
        """What a checkpoint after so many rounds must hold of it, as JSON has it."""
        ...

    def go_on(self, kept: Any, round_: int) -> Stage | None:
        """Instead of the first: the stage that is under way, or next, once so many are done.

        None where the run is done. Raises CheckpointError for what was never kept.
        """
        ...


class FixedPlan:
    """The contract's own."""

    chooses = False

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self._segments: Iterator[Segment] = planned_segments(job, schedule)
        self.choices: list[Choice] = []

    def first(self) -> Stage:
        """See `Plan`."""
        return Stage(next(self._segments))

    def after(self, outcome: Outcome | None = None) -> Stage | None:
        """See `Plan`; nothing that happens changes it."""
        segment = next(self._segments, None)
        return None if segment is None else Stage(segment)

    def kept(self, round_: int) -> None:
        """See `Plan`; the round says it all."""

    def go_on(self, kept: Any, round_: int) -> Stage | None:
        """See `Plan`."""
        return next((Stage(s) for s in self._segments if round_ < s.stop), None)


def first_stage(job: Job, schedule: Schedule) -> Stage:
    """How a run begins, as every party knows.

    One that chooses for itself begins with one round at a time and nothing left out.
    """
    if not job.auto:
        return FixedPlan(job, schedule).first()
    plain = {"W": 5, "R": 1, "depth": 1, "codec": "fp32"}
    written = {name: value for name, value in dict(job.tuning()).items() if name in job.given()}
    tuning = Tuning.model_validate({**plain, **written})
    stop = min(MEASURED_ROUNDS, schedule.evaluation_after(0))
    return Stage(Segment(0, stop, tuning, scored=schedule.is_evaluation(stop)))


class HostPlan:
    """What a host does: as the contract says, or as its guest tells it where that is the contract.

    It remembers the rounds at which it was, so that it is never sent to one at which it was not.
    """

    def __init__(self, job: Job, schedule: Schedule) -> None:
        self.is_told = job.auto
        self._schedule = schedule
        self._written = None if job.auto else FixedPlan(job, schedule)
        self._step = first_stage(job, schedule)
        self._marks: dict[str, int] = {}

    def first(self) -> Stage:
        """The first stage."""
        return self._step if self._written is None else self._written.first()

    def next(self, verdict: Mapping[str, Any]) -> Stage:
        """The stage after a verdict to go on; raises ProtocolError where there can be none."""
        if self._written is not None:
            stage = self._written.after()
            if stage is None:
                raise ProtocolError("VERDICT: expected to stop, as all rounds are done")
            return stage
        here = self._step.segment.stop
        stage = Stage.from_body(verdict.get("next"), here, self._marks, self._schedule)
        if stage.save is not None:
            self._marks[stage.save] = here
        if stage.forget:
            self._marks.clear()
        self._step = stage
        return stage

    def kept(self, round_: int) -> Any:
        """What a checkpoint after so many rounds must hold of it, as JSON has it."""
        if self._written is not None:
            return self._written.kept(round_)
        begun = round_ > self._step.segment.start
        return (Stage(self._step.segment) if begun else self._step).to_body()

    def go_on(self, kept: Any, round_: int) -> Stage | None:
        """Instead of the first: the stage that is under way, or next, once so many are done.

        None where the run is done. Raises CheckpointError for what was never kept.
        """
        if self._written is not None:
            return self._written.go_on(kept, round_)
        start = kept.get("start") if isinstance(kept, dict) else None
        if not isinstance(start, int) or start > round_:
            raise CheckpointError("plan: expected the stage that is under way, got something else")
        try:
            self._step = Stage.from_body(kept, start, {}, self._schedule)
        except ProtocolError as error:
            raise CheckpointError(f"plan: {error}") from error
        if self._step.save is not None:
            self._marks[self._step.save] = start
        return self._step if round_ < self._step.segment.stop else None
