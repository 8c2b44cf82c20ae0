"""When a quiet connection counts as dead, and how long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0


def is_silent(heard_at: float, now: float, heartbeat_s: float) -> bool:
    """Whether a peer that says something every heartbeat has missed two."""
    return now - heard_at > 2 * heartbeat_s


def backoff(chance: random.Random) -> Iterator[float]:
    """Seconds between attempts to connect: twice as long each time, and never quite the same."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause * chance.uniform(0.5, 1.0)
        pause = min(2 * pause, LONGEST_PAUSE_S)
