"""The order of work: a function of the settings and the round, never of timing.

Training runs in segments: consecutive rounds under one tuning. Within a segment a host sends Z up
to `depth` rounds ahead of the derivative that it waits for. Each round has R - 1 local steps, made
while its messages are in flight (or after its update, if the contract says so). At the end of a
segment nothing is in flight and all parties are at the same round. The contract's evaluations
happen anywhere in a segment, with rounds in flight. They change neither the updates nor their
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from celu.config.job import Choice, Job, Tuning
from celu.config.schema import HeldOut


@dataclass(frozen=True)
class Segment:
    """Rounds from `start` to before `stop`, under one tuning; rounds count from 0."""

    start: int
    stop: int
    tuning: Tuning

    @property
    def rounds(self) -> range:
        """The rounds, in order."""
        return range(self.start, self.stop)

    @property
    def measured(self) -> range:
        """The rounds whose timings count; those before them fill the pipeline.

        One more round is left out: a host's first update is slow, and the guest, which waits for
        the next Z, would count that as network latency.
        """
        return self.rounds[min(self.tuning.depth + 1, len(self.rounds) // 2) :]

    def last_sent(self, round_: int) -> int:
        """The last round whose Z a host has sent when it waits for the derivative of `round_`."""
        return min(round_ + self.tuning.depth - 1, self.stop - 1)


@dataclass(frozen=True)
class Schedule:
    """The length of a run, when and on how many rows it evaluates, and when local steps are made.

    With `validation_rows`, evaluations score these, and test rows are scored at the end of the run.
    `local_steps_after_update`: after a round's exchanged update instead of before it.
    """

    num_rounds: int
    rounds_per_epoch: int
    evaluate_every: int
    test_rows: int
    part_rows: int  # held-out rows are scored in parts of at most this size
    local_steps_after_update: bool = False
    validation_rows: int = 0

    @property
    def validates(self) -> bool:
        """Whether there are validation rows, by which the best weights are chosen."""
        return self.validation_rows > 0

    @property
    def evaluated(self) -> HeldOut:
        """The rows that evaluations during training score."""
        return "validation" if self.validates else "test"

    def is_evaluation(self, round_: int) -> bool:
        """Whether the contract asks for an evaluation after `round_` rounds."""
        return round_ % self.evaluate_every == 0 or round_ == self.num_rounds

    def held_out_parts(self, rows: HeldOut) -> Iterator[tuple[int, int, int]]:
        """The parts in which held-out rows are scored: number, start row, stop row."""
        count = self.validation_rows if rows == "validation" else self.test_rows
        for part, start in enumerate(range(0, count, self.part_rows)):
            yield part, start, min(start + self.part_rows, count)


def planned_segments(job: Job, schedule: Schedule) -> Iterator[Segment]:
    """The segments of a run whose tunings are fixed by the contract."""
    choices = job.choices or [Choice(round=0, **dict(job.tuning()))]
    starts = [choice.round for choice in choices if choice.round < schedule.num_rounds]
    for choice, (first, end) in zip(
        choices, pairwise([*starts, schedule.num_rounds]), strict=False
    ):
        yield Segment(first, end, choice)
