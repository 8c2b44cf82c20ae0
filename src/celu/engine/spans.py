"""What a party's compute thread did lately, and when: one thing at a time, the latest only.

Timings are those of the party's clock. What its links did beside it is in their `Traffic`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

What = Literal["compute", "local", "encode", "wait", "evaluate"]
MOST = 200  # spans that are kept, and that a report tells
MOST_ROUNDS = 8  # of which it tells them, the latest


class Spent:
    """How long something took, once it is over."""

    seconds = 0.0


class Spans:
    """Notes what is done from when to when. The clock must be that of the party's links."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.last_turn = clock()  # when the party last turned from one thing to another
        self._doing: What | None = None
        self._kept: deque[tuple[str, float, float]] = deque(maxlen=MOST)

    @contextmanager
    def doing(self, what: What) -> Iterator[Spent]:
        """This is done in here; where something else was being done, that goes on afterwards."""
        spent, outer = Spent(), self._doing
        began = self._turn(what)
        yield spent
        spent.seconds = self._turn(outer) - began

    def take(self) -> list[tuple[str, float, float]]:
        """What was done since this was last asked: what, from, to."""
        taken = list(self._kept)
        self._kept.clear()
        return taken

    def _turn(self, what: What | None) -> float:
        now = self.clock()
        if self._doing is not None and now > self.last_turn:
            self._kept.append((self._doing, self.last_turn, now))
        self._doing, self.last_turn = what, now
        return now
