"""Clock offsets between the parties of a run, estimated from their messages.

Each party counts its seconds from the start of its own training, by its own clock. Between two
parties, the n-th message that one sent is the n-th that the other received. If messages take
equally long both ways, the clock offset is half the difference between the two directions (as in
NTP).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from celu.engine.spans import MAX_SPAN_ROUNDS, MAX_SPANS
from celu.events import RoundDone, TrainingStarted
from celu.record.run import RunRecord
from celu.transport.message import MAX_SPANS as MAX_TRANSFER_SPANS

_MAX_PAIRS = 40  # only the latest count, because clocks drift


def clock_offset_s(reference: RunRecord, other: RunRecord, until_s: float) -> float:
    """What to add to a party's seconds to get the reference party's seconds.

    Estimated from messages before `until_s` of the reference party's clock; 0.0 without any.
    """
    if reference is other:
        return 0.0
    ours, theirs = _complete_rounds(reference), _complete_rounds(other)
    if len(reference.job.get("hosts", {})) == 1:  # spans do not say which peer a message was from
        there = [b - a for a, b in _pairs(theirs, ours) if b <= until_s]
        back = [b - a for a, b in _pairs(ours, theirs) if a <= until_s]
        if there and back:
            return (median(there[-_MAX_PAIRS:]) - median(back[-_MAX_PAIRS:])) / 2
    # With several hosts, assume that both parties end a round at about the same time.
    seconds = {event.round: event.seconds for event in other.rounds}
    ends = [(e.seconds, seconds[e.round]) for e in reference.rounds if e.round in seconds]
    offsets = [a - b for a, b in ends if a <= until_s][-_MAX_PAIRS:]
    return median(offsets) if offsets else 0.0


def _complete_rounds(record: RunRecord) -> list[RoundDone]:
    """The rounds from the first on whose messages are all recorded, before any interruption."""
    found: list[RoundDone] = []
    num_starts = 0
    for event in record.events:
        num_starts += isinstance(event, TrainingStarted)
        if isinstance(event, RoundDone):
            rounds = event.round - (found[-1].round if found else 0)
            if not 0 < rounds <= MAX_SPAN_ROUNDS or not _is_complete(event):
                break
            found.append(event)
        if num_starts > 1:
            break
    return found


def _is_complete(event: RoundDone) -> bool:
    """Whether the event holds all spans: events with many spans are truncated."""
    messages = max(_count(event, "send"), _count(event, "receive"))
    return 0 < len(event.spans) < MAX_SPANS and messages < MAX_TRANSFER_SPANS


def _count(event: RoundDone, kind: str) -> int:
    return sum(what == kind for what, _, _ in event.spans)


def _pairs(sender: Sequence[RoundDone], receiver: Sequence[RoundDone]) -> list[tuple[float, float]]:
    """For each message, when it was sent and when it arrived, each by that party's clock."""
    sent = [b for event in sender for what, _, b in event.spans if what == "send"]
    received = [b for event in receiver for what, _, b in event.spans if what == "receive"]
    return list(zip(sent, received, strict=False))
