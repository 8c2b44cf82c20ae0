"""The tuning that saturates the link: codec, depth and the local steps that fit in.

It turns measured costs (`cost_model`) into a tuning. It does not know whether local steps help the
model: `auto` decides that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celu.codecs.registry import find_codec
from celu.config.job import Codecs, Job, Tuning
from celu.engine.cost_model import Costs, Pair
from celu.engine.outcome import Outcome
from celu.engine.plan import MAX_W

# From exact to small.
CODEC_LADDER = ("fp32", "bf16", "int8", "4bit", "2bit")
# A round may take this much longer than with the fastest codec, for the sake of a more exact one.
_CODEC_TOLERANCE = 1.1
# A few local steps may make a round this much longer than it is without any, more must fit in.
_STRETCH, _FEW = 1.75, 3
_MIN_W = 5


class LinkTuner:
    """Derives tunings from costs, without changing what the contract fixes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        tuning = dict(job.tuning())
        self._fixed: dict[str, Any] = {name: tuning[name] for name in job.given()}
        self._latest: Costs
        self._costs: dict[str, Costs] = {}  # by the codec in use when they were measured

    def measure(self, outcome: Outcome) -> None:
        """Update the costs from a segment."""
        codecs = outcome.segment.tuning.codecs
        sizes = self._bytes(codecs)
        if not self._costs:
            self._latest = Costs.from_outcome(outcome, *sizes)
        self._latest = self._latest.updated(outcome, *sizes)
        self._costs[codecs.activation] = self._latest  # by codec, since encoding takes time too

    def tuning(self, R: Pair, caution: int = 0) -> Tuning:
        """The tuning that saturates the link, with this R as far as time allows.

        With caution 1, two thirds as many rounds are in flight and codecs have at least 4 bits,
        with caution 2 one round and 8 bits: the link idles some of the time, and less is stale.
        """
        codecs = self._fixed.get("codec") or self._choose_codecs((1, 1), caution)
        costs, sizes = self._costs_of(codecs), self._bytes(codecs)
        free, stretched = costs.max_steps(*sizes, 1.0), costs.max_steps(*sizes, _STRETCH)
        limits = [max(1, a, min(b, _FEW)) for a, b in zip(free, stretched, strict=True)]
        R = min(R[0], limits[0]), min(R[1], limits[1])
        codecs = self._fixed.get("codec") or self._choose_codecs(R, caution)
        depth = self._costs_of(codecs).depth(*self._bytes(codecs), R)
        R_by_role = {"guest": R[0], "host": R[1]}
        tuning = {
            "W": {role: min(MAX_W, max(_MIN_W, r)) for role, r in R_by_role.items()},
            "R": R_by_role,
            "depth": (depth, (2 * depth + 2) // 3, 1)[caution],
            "codec": codecs,
        }
        return Tuning.model_validate({**tuning, **self._fixed})

    def explain(self, tuning: Tuning) -> str:
        """The costs behind a tuning, for reports."""
        costs = self._costs_of(tuning.codecs)
        up, down = self._bytes(tuning.codecs)
        exact = self._bytes(_all(CODEC_LADDER[0]))
        return (
            f"per round: transfer {1000 * costs.transfer_s(*exact):.1f} ms in float32, "
            f"{1000 * costs.transfer_s(up, down):.1f} ms in {tuning.codecs.activation}; round trip "
            f"{1000 * costs.round_trip_s:.1f} ms; compute {1000 * costs.guest_s:.1f} ms at the "
            f"guest, {1000 * costs.host_s:.1f} ms at the hosts: depth {tuning.depth}"
        )

    def _choose_codecs(self, R: Pair, caution: int) -> Codecs:
        """The most exact codec with which a round is about as fast as with the fastest one."""
        round_s = {
            name: self._costs_of(_all(name)).round_s(*self._bytes(_all(name)), R)
            for name in CODEC_LADDER[: len(CODEC_LADDER) - caution]
        }
        fastest_s = min(round_s.values())
        name = next(n for n, seconds in round_s.items() if seconds <= _CODEC_TOLERANCE * fastest_s)
        # Held-out rows decide about the target, and are few: use at least int8 for them.
        evaluation = name if name in ("fp32", "bf16") else "int8"
        return Codecs(activation=name, derivative=name, evaluation=evaluation)

    def _costs_of(self, codecs: Codecs) -> Costs:
        """The costs with a codec: the link's as last measured, and computing with this codec."""
        latest = self._latest
        return replace(
            self._costs.get(codecs.activation, latest),
            up_byte_s=latest.up_byte_s,
            down_byte_s=latest.down_byte_s,
            round_trip_s=latest.round_trip_s,
        )

    def _bytes(self, codecs: Codecs) -> tuple[int, int]:
        """Bytes of a round's Z and dZ, for the host with the widest Z."""
        width = max((terms.z_width for terms in self._job.hosts.values()), default=1)
        up, down = (
            find_codec(name, "codec").max_bytes(self._job.batch_size, width)
            for name in (codecs.activation, codecs.derivative)
        )
        return up, down


def _all(codec: str) -> Codecs:
    return Codecs(activation=codec, derivative=codec, evaluation=codec)
