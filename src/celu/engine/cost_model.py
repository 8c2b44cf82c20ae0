"""A cost model of a round: time on the link and at the parties.

Costs are measured during training (`outcome.Timings`). The cost model predicts the duration of a
round, the depth it needs and how many local steps fit in. It does not know codecs, or whether a
local step helps the neural network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from celu.config.job import MAX_DEPTH
from celu.engine.outcome import Outcome
from celu.engine.plan import MAX_R

Pair = tuple[int, int]  # R of the guest, R of the hosts
_MIN_ROUNDS = 3  # fewer measured rounds are too noisy
_LONGER = 1.1  # times as long may a round take, for fewer rounds in flight: less is stale
_IDLE = 1.2  # times as long as the slowest of link and parties: all of them wait


@dataclass(frozen=True)
class Costs:
    """The latest measurements, in seconds; with several hosts, those of the slowest."""

    up_byte_s: float  # on the link, to the guest
    down_byte_s: float
    round_trip_s: float
    guest_s: float  # computing one exchange, without local steps
    host_s: float
    guest_step_s: float
    host_step_s: float

    @staticmethod
    def from_outcome(outcome: Outcome, up: int, down: int) -> Costs:
        """From a segment with messages of `up` and `down` bytes."""
        guest, hosts = outcome.guest, outcome.hosts
        slowest = max(hosts, key=lambda h: h.exchange_s, default=None)
        costs = Costs(
            guest.byte_s,
            max((h.byte_s for h in hosts), default=0.0),
            0.0,
            guest.exchange_s,
            slowest.exchange_s if slowest else 0.0,
            guest.step_s,
            slowest.step_s if slowest else 0.0,
        )
        depth, busy_s = outcome.segment.tuning.depth, costs.round_s(up, down)
        cycle_s = outcome.shortest_cycle_s or depth * guest.seconds / guest.rounds
        if cycle_s < _IDLE * depth * busy_s:
            # Nobody waits, and the round trip is shorter. But as many rounds in flight are enough.
            cycle_s -= busy_s - guest.exchange_s
        return replace(costs, round_trip_s=costs._round_trip_s(cycle_s, up, down))

    def updated(self, outcome: Outcome, up: int, down: int) -> Costs:
        """The costs after another segment, with messages of `up` and `down` bytes.

        Values that it did not measure stay.
        """
        guest, hosts = outcome.guest, outcome.hosts
        if guest.rounds < _MIN_ROUNDS:
            return self
        slowest = max(hosts, key=lambda h: h.exchange_s, default=None)
        down_byte_s = max((h.byte_s for h in hosts), default=0.0)
        costs = replace(
            self,
            up_byte_s=guest.byte_s or self.up_byte_s,
            down_byte_s=down_byte_s or self.down_byte_s,
            guest_s=guest.exchange_s,
            guest_step_s=guest.step_s if guest.local_steps else self.guest_step_s,
            host_s=slowest.exchange_s if slowest else 0.0,
            host_step_s=(slowest.step_s if slowest and slowest.local_steps else self.host_step_s),
        )
        return costs._with_longer_round_trip(outcome, up, down)

    def _with_longer_round_trip(self, outcome: Outcome, up: int, down: int) -> Costs:
        """The costs if the round trip has become so long that everyone waits; else the same.

        A round trip that has become shorter cannot be seen; more rounds than necessary are in
        flight.
        """
        depth = outcome.segment.tuning.depth
        parties_s = max(party.busy_s for party in (outcome.guest, *outcome.hosts))
        if depth == 1 or outcome.cycle_s < _IDLE * depth * max(
            self.transfer_s(up, down), parties_s
        ):
            return self
        round_trip_s = self._round_trip_s(outcome.cycle_s, up, down)
        return replace(self, round_trip_s=max(self.round_trip_s, round_trip_s))

    def _round_trip_s(self, cycle_s: float, up: int, down: int) -> float:
        """What remains of the time from one Z to the next that is computed after its answer.

        Local steps do not count: a party makes them while it waits.
        """
        others_s = self._both_ways_s(up, down) + self.guest_s + self.host_s
        return max(0.0, cycle_s - others_s)

    def _both_ways_s(self, up: int, down: int) -> float:
        return up * self.up_byte_s + down * self.down_byte_s

    def transfer_s(self, up: int, down: int) -> float:
        """How long a round's messages occupy the link, in the slower direction."""
        return max(up * self.up_byte_s, down * self.down_byte_s)

    def round_s(self, up: int, down: int, R: Pair = (1, 1)) -> float:
        """How long a round takes if enough rounds are in flight."""
        return max(
            self.transfer_s(up, down),
            self.guest_s + (R[0] - 1) * self.guest_step_s,
            self.host_s + (R[1] - 1) * self.host_step_s,
        )

    def depth(self, up: int, down: int, R: Pair = (1, 1)) -> int:
        """How many rounds must be in flight for a round to take little more than `round_s`."""
        round_s = self.round_s(up, down, R)
        latency_s = self.round_trip_s + self._both_ways_s(up, down) + self.host_s
        enough = math.ceil((latency_s + round_s) / max(_LONGER * round_s, 1e-9))
        return min(MAX_DEPTH, max(1, enough))

    def max_steps(self, up: int, down: int, stretch: float) -> Pair:
        """The largest R of guest and hosts that makes a round at most `stretch` times as long."""
        spare_s = stretch * self.round_s(up, down)
        guest = 1 + int((spare_s - self.guest_s) / max(self.guest_step_s, 1e-9))
        host = 1 + int((spare_s - self.host_s) / max(self.host_step_s, 1e-9))
        return min(guest, MAX_R), min(host, MAX_R)
