"""The outcome of a segment: scores and timings, from which a plan chooses the next segment."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from pydantic import FiniteFloat, TypeAdapter

from celu.engine.schedule import Segment
from celu.errors import ProtocolError
from celu.ranks.slices import Slices


@dataclass(frozen=True)
class Timings:
    """How a party spent its time in the measured rounds of a segment. The fields are on the wire.

    `transfer_s` sums the time from the first to the last byte of each received message;
    `transfer_bytes` are the bytes of these messages. `reuse_weight` is the mean weight of the
    instances of a batch at its third or last use; 0 if there was none. `diverged` is 1 if NaN or
    Inf made the party continue from its savepoint.
    """

    rounds: int
    seconds: float
    waited_s: float
    local_s: float
    local_steps: int
    transfer_s: float
    transfer_bytes: int
    reuse_weight: float = 0.0
    diverged: int = 0

    @property
    def busy_s(self) -> float:
        """Seconds per round, without waiting."""
        return max(0.0, self.seconds - self.waited_s) / self.rounds

    @property
    def exchange_s(self) -> float:
        """Seconds per round, without waiting and local steps."""
        return max(0.0, self.seconds - self.waited_s - self.local_s) / self.rounds

    @property
    def step_s(self) -> float:
        """Seconds per local step; if none was made, `exchange_s`."""
        return self.local_s / self.local_steps if self.local_steps else self.exchange_s

    @property
    def byte_s(self) -> float:
        """Seconds on the link per received byte."""
        return self.transfer_s / self.transfer_bytes if self.transfer_bytes else 0.0

    def to_body(self) -> dict[str, Any]:
        """The body of a host's report."""
        return asdict(self)

    @staticmethod
    def from_body(body: Any, rounds: int, host: str = "a host") -> Timings:
        """The timings in a host's report; raises ProtocolError."""
        types = {field.name: int if field.type == "int" else float for field in fields(Timings)}
        valid = isinstance(body, dict) and body.keys() == types.keys()
        if not valid or not all(_is_a(types[name], value) for name, value in body.items()):
            raise ProtocolError(f"REPORT from {host}: expected valid timings")
        return replace(Timings(**body), rounds=rounds)


def _is_a(kind: type, value: Any) -> bool:
    """Whether a peer's value is a number of this type and within bounds.

    A count must be an integer: seconds divided by a tiny fraction would be infinite.
    """
    return type(value) in {int, kind} and 0 <= value <= 1e15


@dataclass(frozen=True)
class Outcome:
    """What the guest knows at the end of a segment. The fields are a file format.

    `losses` are those of the last fresh batches, before the model trained on them. `scores` has the
    best objective (higher is better) of the contract's evaluations in the segment, if any.
    `cycle_s` is how long as many rounds as are in flight take: the median, or 0 if not measured.
    `shortest_cycle_s` is the least, with the first rounds, which have few local steps.
    """

    segment: Segment
    guest: Timings
    hosts: tuple[Timings, ...]
    losses: list[FiniteFloat] = field(default_factory=list)
    scores: list[FiniteFloat] = field(default_factory=list)
    cycle_s: FiniteFloat = 0.0
    shortest_cycle_s: FiniteFloat = 0.0


_OUTCOME = TypeAdapter(Outcome)


def agree(outcome: Outcome, ranks: Slices) -> Outcome:
    """The outcome as the first rank measured it: what follows from it must be the same at all."""
    shared = ranks.share(lambda: _OUTCOME.dump_python(outcome, mode="json", by_alias=True))
    return outcome if ranks.is_first else _OUTCOME.validate_python(shared)
