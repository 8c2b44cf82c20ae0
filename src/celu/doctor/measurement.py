"""What is measured of a link between the guest and a host, and which claims of a peer are believed.

Half of the numbers come from the peer: it sees when bytes arrive there. A number that cannot be is
refused; one that merely is not so misleads whoever reads the advice, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from celu.errors import ProtocolError

MAX_S = 3600.0  # of anything that is timed
MAX_WALL_S = 1e11  # a clock that shows the year 5000 is wrong, but may be compared
_MAX_MBPS = 1e9
_MIN_MBPS = 1e-6
MAX_PARCEL = 1 << 30


@dataclass(frozen=True)
class Way:
    """One direction: its bandwidth, alone and while the other is in use, and what a rest costs.

    A parcel is some messages sent at once; its seconds count from the first one's sending until
    the sender knows that the last one arrived.
    """

    mbps: float
    duplex_mbps: float
    parcel_bytes: int
    parcel_s: float  # right after others
    rested_s: float  # after nothing was sent for a while

    @property
    def share(self) -> float:
        """What is left of the bandwidth while the other direction is in use."""
        return self.duplex_mbps / self.mbps

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth, alone."""
        return self.mbps * 1e6 / 8


@dataclass(frozen=True)
class Measured:
    """All that is measured between the guest and one host."""

    rtt_min_s: float
    rtt_median_s: float
    jitter_s: float
    clock_s: float  # what the host's clock shows more than the guest's
    clock_error_s: float
    to_host: Way
    to_guest: Way

    def body(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def read_measured(body: Mapping[str, Any]) -> Measured:
    """What a guest says was measured; raises ProtocolError naming what cannot be."""
    ways = {}
    for way in ("to_host", "to_guest"):
        inner = body.get(way)
        if not isinstance(inner, dict):
            raise ProtocolError(f"FINDINGS: {way}: expected an object")
        ways[way] = Way(
            number(inner, "mbps", _MIN_MBPS, _MAX_MBPS),
            number(inner, "duplex_mbps", _MIN_MBPS, _MAX_MBPS),
            whole(inner, "parcel_bytes", 1, MAX_PARCEL),
            number(inner, "parcel_s", 0.0, MAX_S),
            number(inner, "rested_s", 0.0, MAX_S),
        )
    return Measured(
        number(body, "rtt_min_s", 0.0, MAX_S),
        number(body, "rtt_median_s", 0.0, MAX_S),
        number(body, "jitter_s", 0.0, MAX_S),
        number(body, "clock_s", -MAX_WALL_S, MAX_WALL_S),
        number(body, "clock_error_s", 0.0, MAX_S),
        ways["to_host"],
        ways["to_guest"],
    )


def number(body: Mapping[str, Any], key: str, least: float, most: float) -> float:
    """A number of a body within bounds; ProtocolError for anything else, NaN included."""
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ProtocolError(
            f"FINDINGS: {key}: expected a number from {least:g} to {most:g}, "
            f"got {json.dumps(value)[:40]}"
        )
    return float(value)


def whole(body: Mapping[str, Any], key: str, least: int, most: int) -> int:
    """A whole number of a body within bounds; ProtocolError for anything else."""
    value = number(body, key, least, most)
    if value != int(value):
        raise ProtocolError(f"FINDINGS: {key}: expected a whole number, got {value:g}")
    return int(value)
