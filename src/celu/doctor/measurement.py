"""The measurement of a link between the guest and a host, and the validation of a peer's numbers.

Half of the numbers come from the peer, which sees when bytes arrive at its side. Impossible numbers
are refused; a plausible false number can only make the advice wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celu.errors import ProtocolError

MAX_S = 3600.0  # of any measured time
MAX_WALL_S = 1e11  # a clock that shows the year 5000 is wrong, but can be compared
_MAX_MBPS = 1e9
_MIN_MBPS = 1e-6
MAX_BURST = 1 << 30


@dataclass(frozen=True)
class Direction:
    """One direction of a link: its bandwidth, alone and in full duplex, and the cost of idling.

    A burst is a few messages in a row; its time runs from the first send until the sender knows
    that the last message has arrived.
    """

    mbps: float
    duplex_mbps: float
    burst_bytes: int
    burst_s: float  # right after other messages
    idle_burst_s: float  # after a pause

    @property
    def share(self) -> float:
        """The fraction of the bandwidth that is left while the other direction is in use."""
        return self.duplex_mbps / self.mbps

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth in bytes, while the other direction is unused."""
        return self.mbps * 1e6 / 8

    def to_body(self) -> dict[str, Any]:
        """As JSON, with the keys of the wire format."""
        return {
            "mbps": self.mbps,
            "duplex_mbps": self.duplex_mbps,
            "parcel_bytes": self.burst_bytes,
            "parcel_s": self.burst_s,
            "rested_s": self.idle_burst_s,
        }


@dataclass(frozen=True)
class Measurement:
    """Everything that is measured between the guest and one host."""

    rtt_min_s: float
    rtt_median_s: float
    jitter_s: float
    clock_s: float  # host's clock minus guest's clock
    clock_error_s: float
    to_host: Direction
    to_guest: Direction

    def to_body(self) -> dict[str, Any]:
        """As JSON, with the keys of the wire format."""
        return {
            "rtt_min_s": self.rtt_min_s,
            "rtt_median_s": self.rtt_median_s,
            "jitter_s": self.jitter_s,
            "clock_s": self.clock_s,
            "clock_error_s": self.clock_error_s,
            "to_host": self.to_host.to_body(),
            "to_guest": self.to_guest.to_body(),
        }


def read_measurement(body: Mapping[str, Any]) -> Measurement:
    """Read the guest's results; raises ProtocolError for an impossible number."""
    directions = {}
    for name in ("to_host", "to_guest"):
        inner = body.get(name)
        if not isinstance(inner, dict):
            raise ProtocolError(f"FINDINGS: {name}: expected an object")
        directions[name] = Direction(
            number(inner, "mbps", _MIN_MBPS, _MAX_MBPS),
            number(inner, "duplex_mbps", _MIN_MBPS, _MAX_MBPS),
            integer(inner, "parcel_bytes", 1, MAX_BURST),
            number(inner, "parcel_s", 0.0, MAX_S),
            number(inner, "rested_s", 0.0, MAX_S),
        )
    return Measurement(
        number(body, "rtt_min_s", 0.0, MAX_S),
        number(body, "rtt_median_s", 0.0, MAX_S),
        number(body, "jitter_s", 0.0, MAX_S),
        number(body, "clock_s", -MAX_WALL_S, MAX_WALL_S),
        number(body, "clock_error_s", 0.0, MAX_S),
        directions["to_host"],
        directions["to_guest"],
    )


def number(body: Mapping[str, Any], key: str, low: float, high: float) -> float:
    """Read a number within bounds; raises ProtocolError for anything else, including NaN."""
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ProtocolError(
            f"FINDINGS: {key}: expected a number from {low:g} to {high:g}, "
            f"got {json.dumps(value)[:40]}"
        )
    return float(value)


def integer(body: Mapping[str, Any], key: str, low: int, high: int) -> int:
    """Read an integer within bounds; raises ProtocolError for anything else."""
    value = number(body, key, low, high)
    if value != int(value):
        raise ProtocolError(f"FINDINGS: {key}: expected an integer, got {value:g}")
    return int(value)
