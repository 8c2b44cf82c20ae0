"""Some rounds of each run to look at closely: what its parties did when, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celu.events import RoundDone
from celu.record.run import RunRecord

PLACES = {"beginning": 0.15, "middle": 0.5, "end": 1.0}
_ROUNDS = 4  # in a window
Span = tuple[str, float, float]


@dataclass(frozen=True)
class RoundWindow:
    """Some rounds of a run, in seconds of its leader's clock."""

    first: int
    last: int
    start: float
    stop: float


def groups(records: Sequence[RunRecord]) -> list[list[int]]:
    """Which records are of one run; the guest, or whoever is there, leads."""
    found: dict[object, list[int]] = {}
    for i, record in enumerate(records):
        found.setdefault(record.run_id or i, []).append(i)
    return [sorted(group, key=lambda i: records[i].role != "guest") for group in found.values()]


def window_at(rounds: Sequence[RoundDone], share: float) -> RoundWindow | None:
    """Rounds about there, if possible without an evaluation in between."""
    ends = [i for i, event in enumerate(rounds) if event.spans]
    if not ends:
        return None
    aim = share * (len(rounds) - 1)
    found = [window for i in ends if (window := _ending_at(rounds, i)) is not None]
    if not found:
        return None

    def badness(window: tuple[int, RoundWindow]) -> tuple[bool, float]:
        index, w = window
        disturbed = any(
            what == "evaluate" and a < w.stop and b > w.start
            for event in rounds[max(0, index - _ROUNDS) : index + 1]
            for what, a, b in event.spans
        )
        return disturbed, abs(index - aim)

    return min(found, key=badness)[1]


def _ending_at(rounds: Sequence[RoundDone], index: int) -> tuple[int, RoundWindow] | None:
    """The window whose last round is that of an event; its index with it."""
    event = rounds[index]
    since = rounds[index - 1].round if index else 0
    if event.round - since >= _ROUNDS or index == 0:  # one event tells of enough, or is the first
        start = min(a for _, a, _ in event.spans)
        return index, RoundWindow(since + 1, event.round, start, event.seconds)
    first = max(0, index - _ROUNDS)
    while event.round - rounds[first].round > _ROUNDS:
        first += 1
    if any(not one.spans for one in rounds[first + 1 : index + 1]):
        return None
    return index, RoundWindow(
        rounds[first].round + 1, event.round, rounds[first].seconds, event.seconds
    )


def spans_in(rounds: Sequence[RoundDone], window: RoundWindow, apart_s: float) -> list[Span]:
    """What a party did in a window, in seconds from its start; `apart_s` is added to its."""
    found = []
    for event in rounds:
        for what, a, b in event.spans:
            start = max(0.0, a + apart_s - window.start)
            stop = min(window.stop - window.start, b + apart_s - window.start)
            if stop > start:
                found.append((what, round(start, 6), round(stop, 6)))
    return found
