"""How a run goes of late: its pace, its waits, and how much of the time its links were in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celu.events import SIMILARITY_QUANTILES, RoundDone

REPORTS = 40  # that are late: enough to be steady, few enough to follow a change

_MEDIAN = SIMILARITY_QUANTILES.index(0.5)


@dataclass(frozen=True)
class Latest:
    """The latest rounds of a run; shares are of their time."""

    rounds: int
    seconds: float
    bytes: int
    waited: float  # for messages
    sending: float | None  # something was on its way to a peer; None where spans are not told
    receiving: float | None
    local_steps: int
    bubbles: int
    similarity: float | None  # the median of cached rows

    @property
    def round_s(self) -> float:
        """Seconds a round, evaluations and all."""
        return self.seconds / self.rounds

    @property
    def round_bytes(self) -> float:
        """Bytes a round, evaluations and all."""
        return self.bytes / self.rounds


def latest_of(rounds: Sequence[RoundDone]) -> Latest | None:
    """What the last reports say; None where they are too few to say anything."""
    late = rounds[-REPORTS:]
    if len(late) < 2:
        return None
    first, last = late[0], late[-1]
    seconds = last.seconds - first.seconds
    if seconds <= 0 or last.round <= first.round:
        return None
    weighted = [event.similarity_quantiles for event in late[1:] if event.similarity_quantiles]
    return Latest(
        rounds=last.round - first.round,
        seconds=seconds,
        bytes=max(0, last.bytes - first.bytes),
        waited=min(1.0, max(0.0, (last.waited_s - first.waited_s) / seconds)),
        sending=in_use(late, "send"),
        receiving=in_use(late, "receive"),
        local_steps=last.local_steps - first.local_steps,
        bubbles=last.bubbles - first.bubbles,
        similarity=sum(q[_MEDIAN] for q in weighted) / len(weighted) if weighted else None,
    )


def in_use(rounds: Sequence[RoundDone], way: str) -> float | None:
    """Which share of the time that is told of a link carried something that way.

    A report tells the spans of its last few rounds; the time before these is left out.
    """
    told = used = 0.0
    until = rounds[0].seconds  # by here all is accounted for
    for event in rounds[1:]:
        if event.spans:
            start = max(until, min(a for _, a, _ in event.spans))
            told += max(0.0, event.seconds - start)
            used += _covered([(a, b) for what, a, b in event.spans if what == way], start, event)
        until = event.seconds
    return min(1.0, used / told) if told > 0 else None


def _covered(spans: list[tuple[float, float]], start: float, event: RoundDone) -> float:
    """How much of the time from a start to a report is within spans, each moment counted once."""
    covered = 0.0
    for begin, end in sorted(spans):
        stop = min(end, event.seconds)
        covered += max(0.0, stop - max(begin, start))
        start = max(start, stop)
    return covered
