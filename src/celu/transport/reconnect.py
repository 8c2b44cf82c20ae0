"""When a silent connection counts as dead, and how long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Iterator

MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0


def is_silent(last_received_at: float, now: float, heartbeat_s: float) -> bool:
    """Whether a peer that sends at least one heartbeat per `heartbeat_s` has missed two."""
    return now - last_received_at > 2 * heartbeat_s


def backoff(rng: random.Random) -> Iterator[float]:
    """Seconds to wait before each attempt to connect: exponential backoff with jitter."""
    pause = MIN_PAUSE_S
    while True:
        yield pause * rng.uniform(0.5, 1.0)
        pause = min(2 * pause, MAX_PAUSE_S)
