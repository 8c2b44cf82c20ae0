"""The rounds that a timeline shows, and what each party did in them, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celu.events import RoundDone
from celu.record.run import RunRecord

POSITIONS = {"beginning": 0.15, "middle": 0.5, "end": 1.0}  # as fractions of a run
_ROUNDS = 4  # in a window
Span = tuple[str, float, float]


@dataclass(frozen=True)
class TimeWindow:
    """Some consecutive rounds, with their seconds by the clock of the run's reference party."""

    first_round: int
    last_round: int
    start_s: float
    stop_s: float

    @property
    def seconds(self) -> float:
        """How long the window is."""
        return self.stop_s - self.start_s


def group_by_run(records: Sequence[RunRecord]) -> list[list[int]]:
    """Indices of the records of each run; the guest's, if there, comes first: the reference."""
    found: dict[object, list[int]] = {}
    for i, record in enumerate(records):
        found.setdefault(record.run_id or i, []).append(i)
    return [sorted(group, key=lambda i: records[i].role != "guest") for group in found.values()]


def choose_window(rounds: Sequence[RoundDone], position: float) -> TimeWindow | None:
    """A window near a position of the run (a fraction), if possible without an evaluation."""
    ends = [i for i, event in enumerate(rounds) if event.spans]
    if not ends:
        return None
    target = position * (len(rounds) - 1)
    found = [window for i in ends if (window := _window_ending_at(rounds, i)) is not None]
    if not found:
        return None

    def penalty(candidate: tuple[int, TimeWindow]) -> tuple[bool, float]:
        index, window = candidate
        has_evaluation = any(
            what == "evaluate" and a < window.stop_s and b > window.start_s
            for event in rounds[max(0, index - _ROUNDS) : index + 1]
            for what, a, b in event.spans
        )
        return has_evaluation, abs(index - target)

    return min(found, key=penalty)[1]


def _window_ending_at(rounds: Sequence[RoundDone], index: int) -> tuple[int, TimeWindow] | None:
    """The window that ends with an event's last round, and the event's index."""
    event = rounds[index]
    previous = rounds[index - 1].round if index else 0
    if event.round - previous >= _ROUNDS or index == 0:  # one event covers a whole window
        start = min(a for _, a, _ in event.spans)
        return index, TimeWindow(previous + 1, event.round, start, event.seconds)
    first = max(0, index - _ROUNDS)
    while event.round - rounds[first].round > _ROUNDS:
        first += 1
    if any(not other.spans for other in rounds[first + 1 : index + 1]):
        return None
    return index, TimeWindow(
        rounds[first].round + 1, event.round, rounds[first].seconds, event.seconds
    )


def spans_in(
    rounds: Sequence[RoundDone], window: TimeWindow, clock_offset_s: float = 0.0
) -> list[Span]:
    """A party's spans in a window, in seconds since its start.

    `clock_offset_s` is added to the party's own seconds.
    """
    found = []
    for event in rounds:
        for what, a, b in event.spans:
            start = max(0.0, a + clock_offset_s - window.start_s)
            stop = min(window.seconds, b + clock_offset_s - window.start_s)
            if stop > start:
                found.append((what, round(start, 6), round(stop, 6)))
    return found
