"""The order of work: a function of the settings and the round, never of timing.

Training runs in segments: consecutive rounds under one tuning. Within a segment a host sends Z up
to `depth` rounds ahead of the derivative that it waits for, and each round has R - 1 local steps,
done while its messages are in flight. At the end of a segment nothing is in flight and all parties
are at the same round; evaluations happen there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from celu.config.job import Choice, Job, Tuning


@dataclass(frozen=True)
class Segment:
    """Rounds from `start` to before `stop`; rounds count from 0. The aliases are the keys in files.

    `evaluates`: held-out rows are scored at its end. `scores_fresh_batches`: the guest scores each
    fresh batch before it trains on it.
    """

    start: int
    stop: int
    tuning: Tuning
    evaluates: Annotated[bool, Field(alias="scored")] = True
    scores_fresh_batches: Annotated[bool, Field(alias="judged")] = False

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

    def sends_in(self, round_: int) -> Iterator[int]:
        """The rounds whose Z a host sends just before it waits for the derivative of `round_`."""
        first = self.start if round_ == self.start else self._ahead(round_ - 1) + 1
        return iter(range(first, self._ahead(round_) + 1))

    def _ahead(self, round_: int) -> int:
        return min(round_ + self.tuning.depth - 1, self.stop - 1)


@dataclass(frozen=True)
class Schedule:
    """The length of a run, and when and on how many rows it evaluates."""

    num_rounds: int
    rounds_per_epoch: int
    evaluate_every: int
    test_rows: int
    part_rows: int  # held-out rows are scored in parts of at most this size

    def evaluation_after(self, round_: int) -> int:
        """The contract's next evaluation after `round_` rounds, as a number of finished rounds."""
        return min((round_ // self.evaluate_every + 1) * self.evaluate_every, self.num_rounds)

    def is_evaluation(self, round_: int) -> bool:
        """Whether the contract asks for an evaluation after `round_` rounds."""
        return round_ % self.evaluate_every == 0 or round_ == self.num_rounds

    def test_parts(self) -> Iterator[tuple[int, int, int]]:
        """The parts of an evaluation: number, start row, stop row."""
        for part, start in enumerate(range(0, self.test_rows, self.part_rows)):
            yield part, start, min(start + self.part_rows, self.test_rows)


def planned_segments(job: Job, schedule: Schedule) -> Iterator[Segment]:
    """The segments of a run whose tunings are fixed by the contract."""
    choices = job.choices or [Choice(round=0, **dict(job.tuning()))]
    starts = [choice.round for choice in choices if choice.round < schedule.num_rounds]
    for choice, (first, end) in zip(
        choices, pairwise([*starts, schedule.num_rounds]), strict=False
    ):
        cuts = [first]
        while cuts[-1] < end:
            cuts.append(min(schedule.evaluation_after(cuts[-1]), end))
        for start, stop in pairwise(cuts):
            yield Segment(start, stop, choice, evaluates=schedule.is_evaluation(stop))
