"""A record has no rounds or evaluations that were rolled back, but says that they were."""

from __future__ import annotations

from celu.events import Evaluated, Event, RoundDone, TuningChosen
from celu.record.compaction import surviving


def test_rounds_that_auto_rolled_back_are_left_out() -> None:
    def rounds(first: int, last: int) -> list[Event]:
        return [RoundDone(t=0, round=r, seconds=0) for r in range(first, last + 1)]

    def choice(round_: int) -> Event:
        return TuningChosen(t=0, round=round_, seconds=0, until=20, reason="")

    def evaluation(round_: int) -> Event:
        return Evaluated(t=0, round=round_, seconds=0)

    events = [
        *rounds(1, 4), choice(4), *rounds(5, 10), evaluation(10), *rounds(11, 20),
        choice(4), *rounds(5, 10), evaluation(10), *rounds(11, 12),
    ]  # fmt: skip
    assert [e.round for e in surviving(events, RoundDone)] == list(range(1, 13))
    assert [e.round for e in surviving(events, Evaluated)] == [10]
    assert [e.round for e in surviving(events, TuningChosen)] == [4, 4]
