"""What is done in which order: a function of the settings and the round, never of timing.

A host sends Z up to `depth` rounds ahead of the derivative that it waits for, but never past an
evaluation, so that all parties are at the same round when they evaluate. Each round offers
R - 1 local steps, made while its messages are in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The order of one party's work; rounds count from 0."""

    num_rounds: int
    local_steps: int  # offered in each round
    depth: int
    evaluate_every: int
    test_rows: int
    part_rows: int  # held-out rows are scored in parts of at most so many

    def sends_in(self, round_: int) -> Iterator[int]:
        """The rounds whose Z leaves a host just before it waits for the derivative of `round_`."""
        first = 0 if round_ == 0 else self._ahead(round_ - 1) + 1
        return iter(range(first, self._ahead(round_) + 1))

    def evaluates_after(self, round_: int) -> bool:
        """Whether held-out rows are scored once this round is done; the last one always is."""
        return (round_ + 1) % self.evaluate_every == 0 or round_ + 1 == self.num_rounds

    def test_parts(self) -> Iterator[tuple[int, int, int]]:
        """The parts of an evaluation: number, first row, row after the last."""
        for part, start in enumerate(range(0, self.test_rows, self.part_rows)):
            yield part, start, min(start + self.part_rows, self.test_rows)

    def _ahead(self, round_: int) -> int:
        next_evaluation = (round_ // self.evaluate_every + 1) * self.evaluate_every - 1
        return min(round_ + self.depth - 1, next_evaluation, self.num_rounds - 1)
