"""How a run goes of late, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from celu.events import RoundDone
from celu.record.latest import REPORTS, in_use, latest_of
from record.folders import round_event


def rounds(count: int, **more: Any) -> list[RoundDone]:
    return [RoundDone.model_validate(round_event(n, **more)) for n in range(1, count + 1)]


def test_a_pace_is_that_of_the_last_reports() -> None:
    slow = [
        RoundDone.model_validate(round_event(n, seconds=2.0 * n, waited_s=0.0, spans=[]))
        for n in range(1, 11)
    ]
    fast = [
        RoundDone.model_validate(
            round_event(n, seconds=20.0 + 0.1 * (n - 10), waited_s=0.05 * (n - 10), spans=[])
        )
        for n in range(11, 11 + REPORTS)
    ]
    late = latest_of([*slow, *fast])
    assert late is not None and late.rounds == REPORTS - 1
    assert late.round_s == pytest.approx(0.1) and late.waited == pytest.approx(0.5)
    assert late.round_bytes == 2000
    assert (late.local_steps, late.bubbles) == (2 * late.rounds, 0)
    assert late.similarity == pytest.approx(0.8)
    assert late.sending is None and late.receiving is None


def test_what_is_too_little_to_tell_a_pace_tells_none() -> None:
    assert latest_of([]) is None and latest_of(rounds(1)) is None
    assert latest_of([rounds(1)[0]] * 2) is None


def test_a_link_in_use_twice_at_a_time_is_in_use_once() -> None:
    first, second = rounds(2, spans=[])
    told = second.model_copy(
        update={"spans": [("send", 0.5, 0.7), ("send", 0.6, 0.8), ("wait", 0.5, 1.0)]}
    )
    assert in_use([first, told], "send") == pytest.approx(0.6)  # 0.3 of half a second
    assert in_use([first, told], "receive") == 0.0


def test_rounds_of_which_no_spans_are_told_are_left_out() -> None:
    first, _, third = rounds(3, spans=[])
    told = third.model_copy(update={"spans": [("receive", 1.25, 1.5)]})
    # A report of two rounds that tells the last half of the second one.
    assert in_use([first, told], "receive") == 1.0
    assert in_use([first, third], "receive") is None


def test_what_is_on_its_way_when_a_report_is_made_counts_until_then() -> None:
    first, second = rounds(2, spans=[])
    told = second.model_copy(update={"spans": [("wait", 0.5, 0.75), ("send", 0.75, 1.4)]})
    assert in_use([first, told], "send") == pytest.approx(0.5)
