"""Estimate the rounds of a job over a measured link: their bytes and their seconds.

Only communication is counted. Computation adds to it or, with local steps, overlaps with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from celu.codecs.registry import CODECS
from celu.config.job import Codecs, Job
from celu.doctor.measurement import Measurement
from celu.engine.coding import Coding
from celu.transport.message import Kind
from celu.transport.wire import HEADER


@dataclass(frozen=True)
class RoundEstimate:
    """A round of a job over a link, with one codec."""

    codec: str
    to_guest_bytes: int
    to_host_bytes: int
    serial_s: float  # one round in flight
    full_s: float  # with enough rounds in flight to fill the link
    depth: int  # the number of rounds in flight that fills the link

    def seconds(self, depth: int) -> float:
        """Seconds of a round with `depth` rounds in flight."""
        return max(self.full_s, self.serial_s / depth)


def estimate_rounds(job: Job, host: str, measured: Measurement) -> RoundEstimate:
    """Estimate the rounds of this job with this host."""
    specs = Coding(job, host).specs(Kind.ACTIVATION, Kind.DERIVATIVE)
    to_guest, to_host = (
        HEADER.size + specs[kind].max_bytes for kind in (Kind.ACTIVATION, Kind.DERIVATIVE)
    )
    serial_s = measured.rtt_median_s
    full_s = 0.0
    for num_bytes, direction in ((to_guest, measured.to_guest), (to_host, measured.to_host)):
        serial_s += num_bytes * 8 / 1e6 / direction.mbps
        full_s = max(full_s, num_bytes * 8 / 1e6 / direction.duplex_mbps)
    codec = job.codec
    assert isinstance(codec, Codecs)  # Job converts every other form
    same = codec.activation == codec.derivative
    return RoundEstimate(
        codec.activation if same else f"Z {codec.activation}, dZ {codec.derivative}",
        to_guest,
        to_host,
        max(serial_s, full_s),
        full_s,
        max(1, math.ceil(serial_s / full_s - 0.05)),
    )


def estimate_codecs(job: Job, host: str, measured: Measurement) -> dict[str, RoundEstimate]:
    """Estimate the same job with each codec, for both Z and dZ."""
    estimates = {}
    for name in CODECS:
        codec = Codecs(activation=name, derivative=name, evaluation=name)
        estimates[name] = estimate_rounds(job.model_copy(update={"codec": codec}), host, measured)
    return estimates
