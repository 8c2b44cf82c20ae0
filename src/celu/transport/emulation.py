"""Emulate a network link, without root: bandwidth, delay, jitter, outages.

Each party paces its own sending, so a link between two parties has two emulators. An emulator
computes when each piece arrives; a real run delays the piece until then, a simulation in virtual
time only records it. Nothing is lost or reordered: a TCP stream is emulated, not its packets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from celu.config.link import LinkSettings

# The fraction of a link's bandwidth left for payload. Of each packet of 1500 bytes, 1448 are
# payload and the rest IP and TCP headers. For every two packets of the other direction there is an
# acknowledgement of 52 bytes; training sends as much in both directions, so they always count. And
# for 200 ms of every 10 s a stream almost stops (BBR's ProbeRTT), as long runs show.
PAYLOAD_FRACTION = 1448 / (1500 + 26) * (1 - 0.2 / 10)


@dataclass
class LinkEmulator:
    """Computes when pieces arrive. The same `seed` gives the same jitter."""

    mbps: float  # of payload
    delay_s: float = 0.0
    jitter_s: float = 0.0
    outage_every_s: float = 0.0
    outage_s: float = 0.0
    seed: int = 0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _random: random.Random = field(init=False, repr=False)
    _first_sent_at: float | None = None
    _last_arrival: float = 0.0
    free_at: float = 0.0  # when the last byte of the latest piece has left
    transfer_s: float = 0.0  # from the first byte of the latest piece to its last

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - a simulation

    @staticmethod
    def from_settings(link: LinkSettings, seed: int = 0) -> LinkEmulator:
        """The emulator of a link with these settings."""
        return LinkEmulator(
            link.mbps * PAYLOAD_FRACTION,
            link.delay_ms / 1000,
            link.jitter_ms / 1000,
            link.outage_every_s,
            link.outage_s,
            seed,
        )

    def pace(self, num_bytes: int, sent_at: float) -> None:
        """Sleep until a piece that was sent at `sent_at` has arrived."""
        wait = self.arrival(num_bytes, sent_at) - self.clock()
        if wait > 0:
            self.sleep(wait)

    def arrival(self, num_bytes: int, sent_at: float) -> float:
        """When a piece sent at `sent_at`, after all pieces before, arrives at the other end."""
        if self._first_sent_at is None:
            self._first_sent_at = sent_at
        # The piece occupies the link from when it was sent or the piece before has left, not from
        # this call: the delay of one piece must not hold up the next.
        starts = max(sent_at, self.free_at)
        self.free_at = self._end_of_transfer(starts, num_bytes * 8 / (self.mbps * 1e6))
        self.transfer_s = self.free_at - starts
        jitter = self._random.uniform(0.0, self.jitter_s) if self.jitter_s else 0.0
        self._last_arrival = max(self._last_arrival, self.free_at + self.delay_s + jitter)
        return self._last_arrival

    def _end_of_transfer(self, starts: float, seconds: float) -> float:
        """When a transfer that takes `seconds` of link time ends; outages interrupt it."""
        if not self.outage_s:
            return starts + seconds
        assert self._first_sent_at is not None
        up = self.outage_every_s - self.outage_s
        while True:
            period = (starts - self._first_sent_at) // self.outage_every_s
            ends = self._first_sent_at + period * self.outage_every_s + up
            if starts + seconds <= ends:
                return starts + seconds
            seconds -= max(0.0, ends - starts)
            starts = max(starts, ends) if seconds <= 0 else ends + self.outage_s
