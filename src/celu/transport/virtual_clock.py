"""Virtual time: how long a run would take on a line, without waiting for it.

Every party has a clock. While its program runs, the clock runs with the real time that its
computing takes; while it is suspended, the clock stands still. A message arrives when the line has
carried it (`emulation`). Whoever wants it sooner waits, that is, sets its clock on. So parties that
take turns in one thread are timed as if each had a machine of its own. An accelerator works on
behind a program's back: before a clock is read, it is waited for, so that its time counts for the
party that it worked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass
class VirtualClock:
    """One party's time, in seconds since its program began.

    `speed` is how many times faster than this machine the party computes.
    """

    speed: float = 1.0
    timer: Callable[[], float] = time.perf_counter
    _now: float = 0.0
    _resumed_at: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """The party's program goes on, until it is suspended or ends."""
        self._resumed_at = self.timer()
        yield
        self.now()
        self._resumed_at = None

    def now(self) -> float:
        """The time."""
        if self._resumed_at is not None:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            at = self.timer()
            self._now += (at - self._resumed_at) / self.speed
            self._resumed_at = at
        return self._now

    def wait_until(self, arrival: float) -> None:
        """Nothing happens here before then."""
        self._now = max(self.now(), arrival)
