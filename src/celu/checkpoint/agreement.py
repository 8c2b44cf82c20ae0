"""From which round the parties go on: the newest that all of them hold.

Each says with its HELLO which run its folder belongs to and which rounds it holds; the guest
chooses, and says so with its READY. Nothing that anybody kept is given up without a word: parties
that hold rounds of different runs, or of none, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celu.checkpoint.identity import is_run_id, new_run_id
from celu.errors import CheckpointError, ProtocolError

_MOST_HELD = 256  # rounds that a party may say it holds
_LAST_ROUND = 10**15


@dataclass(frozen=True)
class Claim:
    """What a party says it holds: whose run, and its rounds, ascending from 0."""

    run: str | None = None
    held: tuple[int, ...] = (0,)

    def to_body(self) -> dict[str, Any]:
        """What a HELLO says of it: of very many rounds, the newest."""
        return {"run": self.run, "held": list(self.held[-_MOST_HELD:])}

    @staticmethod
    def from_body(peer: str, body: Mapping[str, Any]) -> Claim:
        """What a peer's HELLO said; raises ProtocolError."""
        run, held = body.get("run"), body.get("held")
        sound = (
            (run is None or is_run_id(run))
            and isinstance(held, list)
            and len(held) <= _MOST_HELD
            and all(_is_round(round_) for round_ in held)
        )
        if not sound:
            raise ProtocolError(f"HELLO of {peer}: expected its run and the rounds that it holds")
        assert isinstance(held, list)
        return Claim(run, tuple(sorted({0, *held})))


@dataclass(frozen=True)
class Agreement:
    """The run that all parties are in, and the round that they go on from."""

    run: str
    round: int

    def to_body(self) -> dict[str, Any]:
        """What the guest's READY says of it."""
        return {"run": self.run, "from": self.round}

    @staticmethod
    def from_body(guest: str, body: Mapping[str, Any] | None, own: Claim) -> Agreement:
        """What the guest's READY said; raises ProtocolError for what we cannot go on from."""
        run, round_ = (body or {}).get("run"), (body or {}).get("from")
        if not is_run_id(run) or not _is_round(round_):
            raise ProtocolError(f"READY of {guest}: expected a run and the round to go on from")
        assert isinstance(run, str) and isinstance(round_, int)
        if round_ not in own.held or (own.held[-1] > 0 and run != own.run):
            raise ProtocolError(
                f"READY of {guest}: expected a round that we said we hold, of our run; "
                f"got round {round_} of {'our' if run == own.run else 'another'} run"
            )
        return Agreement(run, round_)


def agree(guest: str, claims: Mapping[str, Claim]) -> Agreement:
    """What to go on from, by what all parties claim; raises CheckpointError where they cannot."""
    runs = {claim.run for claim in claims.values()}
    if any(claim.held[-1] > 0 for claim in claims.values()) and len(runs) > 1:
        held = "; ".join(f"{name} {_describe(claim)}" for name, claim in claims.items())
        raise CheckpointError(
            f"the parties' run folders are not of one run: {held}. Put back the folder that is "
            "lost or was exchanged, or start anew with another --out at all parties",
            shared=True,
        )
    common = set.intersection(*(set(claim.held) for claim in claims.values()))
    return Agreement(claims[guest].run or new_run_id(), max(common))


def _describe(claim: Claim) -> str:
    if claim.run is None:
        return "has no run"
    return f"has run {claim.run[:8]}, round {claim.held[-1]}"


def _is_round(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LAST_ROUND
