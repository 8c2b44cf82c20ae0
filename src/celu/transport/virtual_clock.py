"""Virtual time: how long a run would take on a network link, without waiting for it.

Every party has a clock. While its coroutine runs, the clock advances by the real time that the
computation takes; while it is suspended, the clock stands still. A message has an arrival time
(`emulation`); a party that receives it earlier advances its clock to that time. So parties that
take turns in one thread are timed as if each had its own machine. CUDA is synchronized before a
clock is read, so that GPU time counts for the party that used it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass
class VirtualClock:
    """One party's time, in seconds since its coroutine started.

    `speed` is how many times faster than this machine the party computes.
    """

    speed: float = 1.0
    timer: Callable[[], float] = time.perf_counter
    _now: float = 0.0
    _resumed_at: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the clock advance while the party's coroutine runs."""
        self._resumed_at = self.timer()
        yield
        self.now()
        self._resumed_at = None

    def now(self) -> float:
        """The current time."""
        if self._resumed_at is not None:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            timer = self.timer()
            self._now += (timer - self._resumed_at) / self.speed
            self._resumed_at = timer
        return self._now

    def wait_until(self, arrival: float) -> None:
        """Advance the clock to an arrival time, unless it is later already."""
        self._now = max(self.now(), arrival)
