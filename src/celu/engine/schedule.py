"""What is done in which order: a function of the settings and the round, never of timing.

Training goes by segments: consecutive rounds under one tuning. Within one, a host sends Z up to
`depth` rounds ahead of the derivative that it waits for, and each round offers R - 1 local steps,
made while its messages are in flight. At a segment's end nothing is in flight, and all parties are
at the same round; there held-out rows are scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from celu.config.job import Choice, Job, Tuning


@dataclass(frozen=True)
class Segment:
    """Rounds from `start` to before `stop`; rounds count from 0.

    `scored`: held-out rows are scored at its end. `judged`: the guest notes how well each fresh
    batch is foretold, before it learns from it.
    """

    start: int
    stop: int
    tuning: Tuning
    scored: bool = True
    judged: bool = False

    @property
    def rounds(self) -> range:
        """The rounds, in order."""
        return range(self.start, self.stop)

    @property
    def measured(self) -> range:
        """The rounds by which time is measured: those before them fill the pipeline.

        And one more: a guest waits for the Z of a round until the host has applied the round
        before, so a host's first update, slow as first times are, would pass for distance.
        """
        return self.rounds[min(self.tuning.depth + 1, len(self.rounds) // 2) :]

    def sends_in(self, round_: int) -> Iterator[int]:
        """The rounds whose Z leaves a host just before it waits for the derivative of `round_`."""
        first = self.start if round_ == self.start else self._ahead(round_ - 1) + 1
        return iter(range(first, self._ahead(round_) + 1))

    def _ahead(self, round_: int) -> int:
        return min(round_ + self.tuning.depth - 1, self.stop - 1)


@dataclass(frozen=True)
class Schedule:
    """The length of a run, when it evaluates, and on what."""

    num_rounds: int
    rounds_per_epoch: int
    evaluate_every: int
    test_rows: int
    part_rows: int  # held-out rows are scored in parts of at most so many

    def evaluation_after(self, round_: int) -> int:
        """The first round count, beyond `round_`, at which the contract has an evaluation."""
        return min((round_ // self.evaluate_every + 1) * self.evaluate_every, self.num_rounds)

    def is_evaluation(self, round_: int) -> bool:
        """Whether the contract has an evaluation once so many rounds are done."""
        return round_ % self.evaluate_every == 0 or round_ == self.num_rounds

    def test_parts(self) -> Iterator[tuple[int, int, int]]:
        """The parts of an evaluation: number, first row, row after the last."""
        for part, start in enumerate(range(0, self.test_rows, self.part_rows)):
            yield part, start, min(start + self.part_rows, self.test_rows)


def planned_segments(job: Job, schedule: Schedule) -> Iterator[Segment]:
    """The segments of a run whose tuning is written in the contract."""
    choices = job.choices or [Choice(round=0, **dict(job.tuning()))]
    starts = [choice.round for choice in choices if choice.round < schedule.num_rounds]
    for choice, (here, end) in zip(choices, pairwise([*starts, schedule.num_rounds]), strict=False):
        cuts = [here]
        while cuts[-1] < end:
            cuts.append(min(schedule.evaluation_after(cuts[-1]), end))
        for start, stop in pairwise(cuts):
            yield Segment(start, stop, choice, scored=schedule.is_evaluation(stop))
