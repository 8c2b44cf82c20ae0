"""Which events of a long run a live view retains in memory: enough to draw it and to judge it.

A run reports about 2000 rounds, however long it is. But each evaluation, checkpoint and link
failure is an event as well, and of these there is no limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from celu.events import (
    Attempt,
    Evaluated,
    Event,
    RoundDone,
    RoundEvent,
    TrainingStarted,
    TuningChosen,
)

NUM_INTACT = 1000  # of the latest events, all are retained
MAX_THINNED = 2000  # of earlier rounds, and as many evaluations
_MAX_OTHERS = 200  # the latest tunings, and as many events of other kinds
_E = TypeVar("_E", bound=RoundEvent)


def surviving(events: Iterable[Event], kind: type[_E]) -> list[_E]:
    """The events of a kind, without those that a run repeats, in order.

    A run repeats rounds if it resumes, or if `auto` rolls back. Of tunings, those that were rolled
    back are part of the story.
    """
    found: list[_E] = []
    for event in events:
        if isinstance(event, TrainingStarted):
            found = [e for e in found if not e.is_rolled_back_by(event.round)]
            continue
        if isinstance(event, RoundDone) and kind is not TuningChosen:
            while found and found[-1].round >= event.round:
                found.pop()
        if isinstance(event, kind):
            found.append(event)
    return found


def compact(events: Sequence[Event], metric: str) -> list[Event]:
    """The events to retain, in order: at most about 6000, with no earlier checkpoints.

    The rounds and evaluations that it retains are spread evenly over the run, with the highest and
    the lowest values of the loss and of `metric`.
    """
    earlier, intact = events[:-NUM_INTACT], events[-NUM_INTACT:]
    rounds = _thin(surviving(earlier, RoundDone), lambda event: event.loss)
    evaluations = _thin(surviving(earlier, Evaluated), lambda event: event.metrics.get(metric))
    choices = surviving(earlier, TuningChosen)[-_MAX_OTHERS:]
    others = [event for event in earlier if not isinstance(event, RoundEvent)]
    starts = [
        *[event for event in others if isinstance(event, Attempt)][-1:],
        *[event for event in others if isinstance(event, TrainingStarted)][-1:],
    ]
    retained = {
        id(event)
        for part in (rounds, evaluations, choices, others[-_MAX_OTHERS:], starts)
        for event in part
    }
    return [*(event for event in earlier if id(event) in retained), *intact]


def _thin(events: list[_E], value: Callable[[_E], float | None]) -> list[_E]:
    """At most `MAX_THINNED`: of equal spans of rounds, the first, last, lowest and highest event.

    Spans of rounds and not of events, so that no part of the run fades when it is thinned again.
    """
    if len(events) <= MAX_THINNED:
        return events
    num_spans, end = MAX_THINNED // 4, max(event.round for event in events) + 1
    spans: dict[int, list[_E]] = {}
    for event in events:
        spans.setdefault(event.round * num_spans // end, []).append(event)

    def key(event: _E) -> float:
        found = value(event)
        return found if found is not None and math.isfinite(found) else 0.0

    chosen = {
        id(event)
        for span in spans.values()
        for event in (span[0], span[-1], min(span, key=key), max(span, key=key))
    }
    return [event for event in events if id(event) in chosen]
