"""An emulated line: bandwidth and one-way delay for what a party sends, without root.

Each party paces its own sending, so a line between two parties is two of these. A piece leaves
when its last byte would have arrived. It does not lose, reorder or vary: a clean, slow line.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Line:
    """When each piece may be handed to the real carrier."""

    mbps: float
    delay_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free_at: float = 0.0

    def carry(self, num_bytes: int, given_at: float) -> None:
        """Wait until a piece given to the line at `given_at` has arrived at its other end."""
        # Occupancy starts when the piece was given or the one before it has left, not when this
        # is called: the delay of one piece must not hold up the next.
        starts = max(given_at, self._free_at)
        self._free_at = starts + num_bytes * 8 / (self.mbps * 1e6)
        wait = self._free_at + self.delay_s - self.clock()
        if wait > 0:
            self.sleep(wait)
