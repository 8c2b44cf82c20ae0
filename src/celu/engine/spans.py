"""Spans: what a party's compute thread did recently and when, one activity at a time.

Times are by the party's clock. The `Traffic` of each link records the spans of its messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

Activity = Literal["compute", "local", "encode", "wait", "evaluate"]
MAX_SPANS = 200  # in the buffer, and in one report
MAX_SPAN_ROUNDS = 8  # a report covers only this many of its latest rounds


class Recorded:
    """A block of code that is recorded as an activity, and how long it took once it has ended."""

    seconds = 0.0

    def __init__(self, spans: Spans, activity: Activity) -> None:
        self._spans = spans
        self._activity = activity

    def __enter__(self) -> Recorded:
        self._outer = self._spans.activity
        self._started = self._spans.switch(self._activity)
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.seconds = self._spans.switch(self._outer) - self._started


class Spans:
    """Records activities with their start and end. Pass the clock of the party's links."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.last_switch = clock()  # when the party last changed its activity
        self.activity: Activity | None = None
        self._spans: deque[tuple[str, float, float]] = deque(maxlen=MAX_SPANS)

    def record(self, activity: Activity) -> Recorded:
        """Record the block as this activity; the enclosing activity continues afterwards."""
        return Recorded(self, activity)

    def drain(self) -> list[tuple[str, float, float]]:
        """The spans since the last call: activity, start, end."""
        spans = list(self._spans)
        self._spans.clear()
        return spans

    def switch(self, activity: Activity | None) -> float:
        """Begin another activity; returns the time."""
        now = self.clock()
        if self.activity is not None and now > self.last_switch:
            self._spans.append((self.activity, self.last_switch, now))
        self.activity, self.last_switch = activity, now
        return now
