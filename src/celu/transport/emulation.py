"""An emulated line for what a party sends, without root: bandwidth, delay, jitter, outages.

Each party paces its own sending, so a line between two parties is two of these. It decides when
each piece arrives; in a real run a piece is held back until then, in virtual time it is noted. It
loses and reorders nothing: a TCP stream over it is what is emulated, not its packets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from celu.config.link import LinkSettings

# A line's bandwidth counts packets. Of each 1500 bytes, 1448 are payload, the rest headers of IP
# and TCP; and for every two packets that come the other way goes an acknowledgement of 52 bytes.
# Training sends as much one way as the other, so that is counted always. And for 200 ms of every
# 10 s a stream all but stops to look for the line's delay (BBR's ProbeRTT), as long runs show.
PAYLOAD = 1448 / (1500 + 26) * (1 - 0.2 / 10)


@dataclass
class LinkEmulator:
    """When what is sent arrives. Jitter comes from `seed`, so a line can be had again."""

    mbps: float  # of payload
    delay_s: float = 0.0
    jitter_s: float = 0.0
    outage_every_s: float = 0.0
    outage_s: float = 0.0
    seed: int = 0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _random: random.Random = field(init=False, repr=False)
    _began: float | None = None
    _arrived: float = 0.0
    free_at: float = 0.0  # when the last byte of the latest piece has left
    transfer_s: float = 0.0  # how long the latest piece took, first byte to last

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - a simulation

    @staticmethod
    def of(link: LinkSettings, seed: int = 0) -> LinkEmulator:
        """The line that settings describe."""
        return LinkEmulator(
            link.mbps * PAYLOAD,
            link.delay_ms / 1000,
            link.jitter_ms / 1000,
            link.outage_every_s,
            link.outage_s,
            seed,
        )

    def carry(self, num_bytes: int, given_at: float) -> None:
        """Wait until a piece given to the line at `given_at` has arrived at its other end."""
        wait = self.arrival(num_bytes, given_at) - self.clock()
        if wait > 0:
            self.sleep(wait)

    def arrival(self, num_bytes: int, given_at: float) -> float:
        """The time at which a piece given at `given_at` is at the other end, after those before."""
        if self._began is None:
            self._began = given_at
        # Occupancy starts when the piece was given or the one before it has left, not when this
        # is called: the delay of one piece must not hold up the next.
        starts = max(given_at, self.free_at)
        self.free_at = self._sent_by(starts, num_bytes * 8 / (self.mbps * 1e6))
        self.transfer_s = self.free_at - starts
        late = self._random.uniform(0.0, self.jitter_s) if self.jitter_s else 0.0
        self._arrived = max(self._arrived, self.free_at + self.delay_s + late)
        return self._arrived

    def _sent_by(self, starts: float, seconds: float) -> float:
        """When so many seconds of sending are done, outages left out."""
        if not self.outage_s:
            return starts + seconds
        assert self._began is not None
        up = self.outage_every_s - self.outage_s
        while True:
            period = (starts - self._began) // self.outage_every_s
            ends = self._began + period * self.outage_every_s + up
            if starts + seconds <= ends:
                return starts + seconds
            seconds -= max(0.0, ends - starts)
            starts = max(starts, ends) if seconds <= 0 else ends + self.outage_s
