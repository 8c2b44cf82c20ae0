"""One clock for the parties of a run, set by their messages.

A party counts its seconds from when its own training began, by a clock of its own. Of two parties,
the n-th message that one sent is the n-th that the other received; if messages take as long one way
as the other, half of what the two ways differ by is how far the clocks are apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from celu.engine.spans import MOST, MOST_ROUNDS
from celu.events import RoundDone, TrainingStarted
from celu.record.run import RunRecord
from celu.transport.message import MAX_SPANS

_LATEST = 40  # pairs that count: clocks drift


def apart_s(leader: RunRecord, other: RunRecord, by: float) -> float:
    """What to add to a party's seconds to have its leader's, at about a time of the leader's."""
    if leader is other:
        return 0.0
    ours, theirs = _told(leader), _told(other)
    if len(leader.job.get("hosts", {})) == 1:  # else whose message it was is not told
        there = [b - a for a, b in _pairs(theirs, ours) if b <= by]
        back = [b - a for a, b in _pairs(ours, theirs) if a <= by]
        if there and back:
            return (median(there[-_LATEST:]) - median(back[-_LATEST:])) / 2
    # As far as rounds end at the same time.
    seconds = {event.round: event.seconds for event in other.rounds}
    ends = [(e.seconds, seconds[e.round]) for e in leader.rounds if e.round in seconds]
    found = [a - b for a, b in ends if a <= by][-_LATEST:]
    return median(found) if found else 0.0


def _told(record: RunRecord) -> list[RoundDone]:
    """The rounds from the first on of which every message is told, before any interruption."""
    found: list[RoundDone] = []
    begun = 0
    for event in record.events:
        begun += isinstance(event, TrainingStarted)
        if isinstance(event, RoundDone):
            rounds = event.round - (found[-1].round if found else 0)
            if not 0 < rounds <= MOST_ROUNDS or not _is_whole(event):
                break
            found.append(event)
        if begun > 1:
            break
    return found


def _is_whole(event: RoundDone) -> bool:
    """Whether nothing was left out of it, as happens where there is much to tell."""
    messages = max(_count(event, "send"), _count(event, "receive"))
    return 0 < len(event.spans) < MOST and messages < MAX_SPANS


def _count(event: RoundDone, kind: str) -> int:
    return sum(what == kind for what, _, _ in event.spans)


def _pairs(sender: Sequence[RoundDone], receiver: Sequence[RoundDone]) -> list[tuple[float, float]]:
    """When each message had left, and when it had arrived, by the clocks of the two."""
    sent = [b for event in sender for what, _, b in event.spans if what == "send"]
    received = [b for event in receiver for what, _, b in event.spans if what == "receive"]
    return list(zip(sent, received, strict=False))
