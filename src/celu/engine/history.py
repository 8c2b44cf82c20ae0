"""The evaluations of a run so far: in memory, in every checkpoint and in the result.

A long run may evaluate a million times. So it retains all of them only up to a limit, and then
every second, every fourth, and so on. `events.jsonl` has all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_EVALUATIONS = 2000

Evaluation = dict[str, float]


class EvaluationHistory:
    """Evenly spaced evaluations from the first one on, at most `MAX_EVALUATIONS`, and the last."""

    def __init__(self, retained: Sequence[Evaluation] = (), count: int | None = None) -> None:
        """`retained` is a `to_list` after `count` evaluations; None: it has all of them."""
        self.count = len(retained) if count is None else count
        self._stride = 1
        while self.count > MAX_EVALUATIONS * self._stride:
            self._stride *= 2
        self._last = dict(retained[-1]) if retained else None
        num_spaced = -(-self.count // self._stride)
        # Those of a checkpoint without a count are all there, and may be too many.
        step = self._stride if count is None else 1
        self._spaced = [dict(evaluation) for evaluation in retained[::step][:num_spaced]]

    def append(self, evaluation: Evaluation) -> None:
        """Add the next evaluation."""
        if self.count % self._stride == 0:
            self._spaced.append(evaluation)
        self._last = evaluation
        self.count += 1
        if len(self._spaced) > MAX_EVALUATIONS:
            self._spaced = self._spaced[::2]
            self._stride *= 2

    def roll_back(self, round_: int) -> None:
        """Drop the evaluations after `round_` rounds.

        Runs roll back only in their first rounds, of which all evaluations are retained.
        """
        self._spaced = [e for e in self._spaced if e["round"] <= round_]
        self._last = self._spaced[-1] if self._spaced else None
        self.count = len(self._spaced)

    def to_list(self) -> list[Evaluation]:
        """The retained evaluations, in order."""
        last_is_spaced = self.count == 0 or (self.count - 1) % self._stride == 0
        last = [] if self._last is None or last_is_spaced else [self._last]
        return [*self._spaced, *last]
