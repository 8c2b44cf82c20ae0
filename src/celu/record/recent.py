"""Statistics of a run's most recent rounds: pace, waiting time, and how busy its links were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celu.events import SIMILARITY_QUANTILES, RoundDone

NUM_RECENT = 40  # round events: enough to be steady, few enough to show a change soon

_MEDIAN = SIMILARITY_QUANTILES.index(0.5)


@dataclass(frozen=True)
class RecentRounds:
    """Statistics of the most recent rounds."""

    rounds: int
    seconds: float
    bytes: int
    waited: float  # share of the time spent waiting for messages
    sending: float | None  # share of the time a message was being sent; None without spans
    receiving: float | None
    local_steps: int
    bubbles: int
    similarity: float | None  # median cosine similarity of cached rows

    @property
    def round_s(self) -> float:
        """Seconds per round, evaluations included."""
        return self.seconds / self.rounds

    @property
    def round_bytes(self) -> float:
        """Bytes per round, evaluations included."""
        return self.bytes / self.rounds


def recent_rounds(rounds: Sequence[RoundDone]) -> RecentRounds | None:
    """Statistics of the last `NUM_RECENT` events; None while they are too few."""
    recent = rounds[-NUM_RECENT:]
    if len(recent) < 2:
        return None
    first, last = recent[0], recent[-1]
    seconds = last.seconds - first.seconds
    if seconds <= 0 or last.round <= first.round:
        return None
    weighted = [event.similarity_quantiles for event in recent[1:] if event.similarity_quantiles]
    return RecentRounds(
        rounds=last.round - first.round,
        seconds=seconds,
        bytes=max(0, last.bytes - first.bytes),
        waited=min(1.0, max(0.0, (last.waited_s - first.waited_s) / seconds)),
        sending=busy_share(recent, "send"),
        receiving=busy_share(recent, "receive"),
        local_steps=last.local_steps - first.local_steps,
        bubbles=last.bubbles - first.bubbles,
        similarity=sum(q[_MEDIAN] for q in weighted) / len(weighted) if weighted else None,
    )


def busy_share(rounds: Sequence[RoundDone], direction: str) -> float | None:
    """The share of time in which the link was busy, `direction` being `send` or `receive`.

    An event holds the spans of its last few rounds only; the time before them is not counted.
    """
    observed_s = busy_s = 0.0
    counted_until = rounds[0].seconds
    for event in rounds[1:]:
        if event.spans:
            start = max(counted_until, min(a for _, a, _ in event.spans))
            spans = [(a, b) for what, a, b in event.spans if what == direction]
            observed_s += max(0.0, event.seconds - start)
            busy_s += _covered_s(spans, start, event.seconds)
        counted_until = event.seconds
    return min(1.0, busy_s / observed_s) if observed_s > 0 else None


def _covered_s(spans: list[tuple[float, float]], start: float, stop: float) -> float:
    """Seconds between `start` and `stop` within spans; where spans overlap, counted once."""
    covered = 0.0
    for begin, span_end in sorted(spans):
        end = min(span_end, stop)
        covered += max(0.0, end - max(begin, start))
        start = max(start, end)
    return covered
