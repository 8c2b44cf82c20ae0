"""The tuning that saturates the link: codec, depth and the local steps that fit in.

It turns measured costs (`cost_model`) into a tuning. It does not know whether local steps help the
model: `auto` finds out by trial.
"""

from __future__ import annotations

from typing import Any

from celu.codecs.registry import find_codec
from celu.config.job import Codecs, Job, Tuning
from celu.engine.cost_model import Costs
from celu.engine.outcome import Outcome
from celu.engine.plan import MAX_W

# From exact to small. Below four bits, convergence suffers.
CODEC_LADDER = ("fp32", "bf16", "int8", "4bit")
# A round may take this much longer than with the fastest codec, for the sake of a more exact one.
_CODEC_TOLERANCE = 1.1
_MIN_W = 5

Pair = tuple[int, int]  # R of the guest, R of the hosts


class LinkTuner:
    """Derives tunings from costs, without changing what the contract fixes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        tuning = dict(job.tuning())
        self.fixed: dict[str, Any] = {name: tuning[name] for name in job.given()}
        self._costs: dict[str, Costs] = {}  # by the codec in use when they were measured

    def first_costs(self, outcome: Outcome) -> Costs:
        """The costs measured by the first segment, which has one round in flight."""
        costs = Costs.from_outcome(outcome, *self._bytes(outcome.segment.tuning.codecs))
        self.update_costs(outcome, costs)
        return costs

    def update_costs(self, outcome: Outcome, costs: Costs) -> Costs:
        """The costs after another segment, stored by codec, since encoding takes time too."""
        costs = costs.updated(outcome)
        self._costs[outcome.segment.tuning.codecs.activation] = costs
        return costs

    def tuning(self, costs: Costs, R: Pair) -> Tuning:
        """The tuning that saturates the link, with this R."""
        R_by_role = {"guest": R[0], "host": R[1]}
        W_by_role = {role: min(MAX_W, max(_MIN_W, r)) for role, r in R_by_role.items()}
        codecs = self.fixed.get("codec") or self._choose_codecs(costs)
        known = self._costs.get(codecs.activation, costs)
        depth = known.depth(*self._bytes(codecs))
        tuning = {"W": W_by_role, "R": R_by_role, "depth": depth, "codec": codecs}
        return Tuning.model_validate({**tuning, **self.fixed})

    def clamp(self, costs: Costs, guest: int, host: int) -> Pair:
        """A pair, limited to the local steps that do not delay a round."""
        tuning = self.tuning(costs, (1, 1))
        known = self._costs.get(tuning.codecs.activation, costs)
        max_guest, max_host = known.free_steps(*self._bytes(tuning.codecs))
        return max(1, min(guest, max_guest)), max(1, min(host, max_host))

    def double(self, costs: Costs, now: Pair) -> Pair:
        """Twice the R of each party that does local steps, clamped."""
        return self.clamp(costs, *(2 * R if R > 1 else 1 for R in now))

    def explain(self, costs: Costs, tuning: Tuning) -> str:
        """The costs behind a tuning, for reports."""
        up, down = self._bytes(tuning.codecs)
        exact = self._bytes(_all(CODEC_LADDER[0]))
        return (
            f"per round: transfer {1000 * costs.transfer_s(*exact):.1f} ms in float32, "
            f"{1000 * costs.transfer_s(up, down):.1f} ms in {tuning.codecs.activation}; round trip "
            f"{1000 * costs.round_trip_s:.1f} ms; compute {1000 * costs.guest_s:.1f} ms at the "
            f"guest, {1000 * costs.host_s:.1f} ms at the hosts: depth {tuning.depth}"
        )

    def _choose_codecs(self, costs: Costs) -> Codecs:
        """The most exact codec with which a round is about as fast as with the fastest one."""
        round_s = {
            name: self._costs.get(name, costs).round_s(*self._bytes(_all(name)))
            for name in CODEC_LADDER
        }
        fastest_s = min(round_s.values())
        name = next(n for n in CODEC_LADDER if round_s[n] <= _CODEC_TOLERANCE * fastest_s)
        # Held-out rows decide trials and the target, and are few: use at least int8 for them.
        evaluation = name if name in ("fp32", "bf16") else "int8"
        return Codecs(activation=name, derivative=name, evaluation=evaluation)

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
