"""Spans: what a party's compute thread did recently and when, one activity at a time.

Times are by the party's clock. The `Traffic` of each link records the spans of its messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Activity = Literal["compute", "local", "encode", "wait", "evaluate"]
MAX_SPANS = 200  # in the buffer, and in one report
MAX_SPAN_ROUNDS = 8  # a report covers only this many of its latest rounds


class Elapsed:
    """The duration of a recorded block, once it has ended."""

    seconds = 0.0


class Spans:
    """Records activities with their start and end. Pass the clock of the party's links."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.last_switch = clock()  # when the party last changed its activity
        self._activity: Activity | None = None
        self._spans: deque[tuple[str, float, float]] = deque(maxlen=MAX_SPANS)

    @contextmanager
    def record(self, activity: Activity) -> Iterator[Elapsed]:
        """Record the block as this activity; the enclosing activity continues afterwards."""
        elapsed, outer = Elapsed(), self._activity
        started = self._switch(activity)
        yield elapsed
        elapsed.seconds = self._switch(outer) - started

    def drain(self) -> list[tuple[str, float, float]]:
        """The spans since the last call: activity, start, end."""
        spans = list(self._spans)
        self._spans.clear()
        return spans

    def _switch(self, activity: Activity | None) -> float:
        now = self.clock()
        if self._activity is not None and now > self.last_switch:
            self._spans.append((self._activity, self.last_switch, now))
        self._activity, self.last_switch = activity, now
        return now
