"""What a measured link means for a job: the bytes of a round, and the seconds they take.

Only the line is counted. What parties compute comes on top, or, with local steps, in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from celu.codecs.registry import CODECS
from celu.config.job import Codecs, Job
from celu.doctor.measurement import Measured
from celu.engine.coding import Coding
from celu.transport.message import Kind
from celu.transport.wire import HEADER


@dataclass(frozen=True)
class RoundEstimate:
    """A round of a job over a link, with one way of coding."""

    codec: str
    to_guest_bytes: int
    to_host_bytes: int
    serial_s: float  # one round in flight
    full_s: float  # as many as fill the line
    depth: int  # so many

    def seconds(self, depth: int) -> float:
        """A round with so many in flight."""
        return max(self.full_s, self.serial_s / depth)


def estimate_rounds(job: Job, host: str, measured: Measured) -> RoundEstimate:
    """The rounds of this job with this host."""
    specs = Coding(job, host).specs(Kind.ACTIVATION, Kind.DERIVATIVE)
    to_guest, to_host = (
        HEADER.size + specs[kind].max_bytes for kind in (Kind.ACTIVATION, Kind.DERIVATIVE)
    )
    serial_s = measured.rtt_median_s
    full_s = 0.0
    for num_bytes, way in ((to_guest, measured.to_guest), (to_host, measured.to_host)):
        serial_s += num_bytes * 8 / 1e6 / way.mbps
        full_s = max(full_s, num_bytes * 8 / 1e6 / way.duplex_mbps)
    codec = job.codec
    assert isinstance(codec, Codecs)  # whatever was written became one
    same = codec.activation == codec.derivative
    return RoundEstimate(
        codec.activation if same else f"Z {codec.activation}, dZ {codec.derivative}",
        to_guest,
        to_host,
        max(serial_s, full_s),
        full_s,
        max(1, math.ceil(serial_s / full_s - 0.05)),
    )


def estimate_codecs(job: Job, host: str, measured: Measured) -> dict[str, RoundEstimate]:
    """The same job with each codec, for Z and dZ alike."""
    found = {}
    for name in CODECS:
        codec = Codecs(activation=name, derivative=name, evaluation=name)
        found[name] = estimate_rounds(job.model_copy(update={"codec": codec}), host, measured)
    return found
