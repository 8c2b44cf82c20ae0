"""What a round costs on a line and at the parties, and what follows from that.

Costs are measured while training (`plan.Timings`). Nothing here knows of codecs or of what is gained
by a step: it answers how long, how many in flight, and how many steps fit in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from celu.engine.plan import MAX_DEPTH, MAX_R, Outcome

_FEW_ROUNDS = 3  # by which nothing is learned


@dataclass(frozen=True)
class Costs:
    """What things cost, in seconds: as last measured."""

    up_byte_s: float  # on the line, to the guest
    down_byte_s: float
    round_trip_s: float
    guest_s: float  # a round's exchange, without local steps
    host_s: float
    guest_step_s: float
    host_step_s: float

    @staticmethod
    def of(outcome: Outcome, up: int, down: int) -> Costs:
        """From a segment of one round at a time, with messages of so many bytes each way."""
        guest, hosts = outcome.guest, outcome.hosts
        costs = Costs(
            guest.byte_s,
            max((h.byte_s for h in hosts), default=0.0),
            0.0,
            guest.exchange_s,
            max((h.exchange_s for h in hosts), default=0.0),
            guest.step_s,
            max((h.step_s for h in hosts), default=0.0),
        )
        waited_s = guest.waited_s / guest.rounds
        on_the_line_s = up * costs.up_byte_s + down * costs.down_byte_s
        return replace(costs, round_trip_s=max(0.0, waited_s - on_the_line_s - costs.host_s))

    def learn(self, outcome: Outcome) -> Costs:
        """The same after another segment; what it did not measure, or hardly, stays."""
        guest, hosts = outcome.guest, outcome.hosts
        if guest.rounds < _FEW_ROUNDS:
            return self
        slowest = max(hosts, key=lambda h: h.exchange_s, default=None)
        return replace(
            self,
            guest_s=guest.exchange_s,
            guest_step_s=guest.step_s if guest.local_steps else self.guest_step_s,
            host_s=slowest.exchange_s if slowest else 0.0,
            host_step_s=(slowest.step_s if slowest and slowest.local_steps else self.host_step_s),
        )

    def line_s(self, up: int, down: int) -> float:
        """How long a round's messages hold the line, in the slower direction."""
        return max(up * self.up_byte_s, down * self.down_byte_s)

    def round_s(self, up: int, down: int) -> float:
        """How long a round takes where enough are in flight."""
        return max(self.line_s(up, down), self.guest_s, self.host_s)

    def depth(self, up: int, down: int) -> int:
        """How many rounds in flight that takes."""
        round_s = self.round_s(up, down)
        latency_s = self.round_trip_s + up * self.up_byte_s + down * self.down_byte_s + self.host_s
        return min(MAX_DEPTH, max(1, math.ceil((latency_s + round_s) / max(round_s, 1e-9))))

    def free_steps(self, up: int, down: int) -> tuple[int, int]:
        """R of the guest and of the hosts for which local steps take no time from a round."""
        spare_s = self.round_s(up, down)
        guest = 1 + int((spare_s - self.guest_s) / max(self.guest_step_s, 1e-9))
        host = 1 + int((spare_s - self.host_s) / max(self.host_step_s, 1e-9))
        return min(guest, MAX_R), min(host, MAX_R)
