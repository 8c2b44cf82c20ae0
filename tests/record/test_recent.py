"""Statistics of recent rounds, compared with manually computed numbers."""

from __future__ import annotations

from typing import Any

import pytest

from celu.events import RoundDone
from celu.record.recent import NUM_RECENT, busy_share, recent_rounds
from record.folders import round_event


def rounds(count: int, **overrides: Any) -> list[RoundDone]:
    return [RoundDone.model_validate(round_event(n, **overrides)) for n in range(1, count + 1)]


def test_the_pace_is_that_of_the_last_events() -> None:
    slow = [
        RoundDone.model_validate(round_event(n, seconds=2.0 * n, waited_s=0.0, spans=[]))
        for n in range(1, 11)
    ]
    fast = [
        RoundDone.model_validate(
            round_event(n, seconds=20.0 + 0.1 * (n - 10), waited_s=0.05 * (n - 10), spans=[])
        )
        for n in range(11, 11 + NUM_RECENT)
    ]
    recent = recent_rounds([*slow, *fast])
    assert recent is not None and recent.rounds == NUM_RECENT - 1
    assert recent.round_s == pytest.approx(0.1) and recent.waited == pytest.approx(0.5)
    assert recent.round_bytes == 2000
    assert (recent.local_steps, recent.bubbles) == (2 * recent.rounds, 0)
    assert recent.similarity == pytest.approx(0.8)
    assert recent.sending is None and recent.receiving is None


def test_too_few_events_have_no_pace() -> None:
    assert recent_rounds([]) is None and recent_rounds(rounds(1)) is None
    assert recent_rounds([rounds(1)[0]] * 2) is None


def test_overlapping_spans_count_once() -> None:
    first, second = rounds(2, spans=[])
    event = second.model_copy(
        update={"spans": [("send", 0.5, 0.7), ("send", 0.6, 0.8), ("wait", 0.5, 1.0)]}
    )
    assert busy_share([first, event], "send") == pytest.approx(0.6)  # 0.3 of half a second
    assert busy_share([first, event], "receive") == 0.0


def test_rounds_without_spans_are_not_counted() -> None:
    first, _, third = rounds(3, spans=[])
    event = third.model_copy(update={"spans": [("receive", 1.25, 1.5)]})
    # An event of two rounds with the spans of the last half of the second one.
    assert busy_share([first, event], "receive") == 1.0
    assert busy_share([first, third], "receive") is None


def test_a_span_still_open_at_an_event_counts_until_then() -> None:
    first, second = rounds(2, spans=[])
    event = second.model_copy(update={"spans": [("wait", 0.5, 0.75), ("send", 0.75, 1.4)]})
    assert busy_share([first, event], "send") == pytest.approx(0.5)
