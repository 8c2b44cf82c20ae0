"""How long a run takes without its evaluations: its stages once more, without any.

Rounds are in flight while held-out rows are scored. So neither the whole time of a run nor that
time less its evaluations' is the time of its training. But evaluations change neither the updates
nor their order, and virtual time needs nothing but the order of work.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import celu
from celu.config.job import Choice, Tuning
from celu.engine.plan import first_stage
from celu.engine.schedule import Schedule
from celu.events import Callback, Event, RoundDone, TuningChosen

# Of the last stage. Its pace is constant once its pipeline is full.
_MAX_ROUNDS = 100
_SCORED_ROWS = 256  # at its end, with both classes among them


class Stages:
    """The stages that the guest executed, with those that were rolled back, in order."""

    def __init__(self, job: celu.Job) -> None:
        self._job = job
        rounds = job.num_rounds(1)
        first = first_stage(job, Schedule(rounds, rounds, rounds, 1, 1)).segment
        self._stages = [(first.start, first.stop, first.tuning)]

    def add(self, event: TuningChosen) -> None:
        """Add the stage that was chosen."""
        tuning = Tuning(W=event.W, R=event.R, depth=event.depth, codec=event.codec)
        self._stages.append((event.round, event.until, tuning))

    def executed(self, round_: int) -> int:
        """How many rounds were executed when `round_` rounds of the latest stage were done."""
        *earlier, (start, _, _) = self._stages
        return sum(stop - first for first, stop, _ in earlier) + round_ - start

    def job(self, num_rounds: int) -> celu.Job:
        """A job that executes the first `num_rounds` rounds and scores a few rows at its end.

        Of the last stage it executes at most the first _MAX_ROUNDS.
        """
        starts = [0]
        for start, stop, _ in self._stages[:-1]:
            starts.append(starts[-1] + stop - start)
        num_rounds = min(num_rounds, starts[-1] + _MAX_ROUNDS)
        choices = [
            Choice.model_validate({**tuning.model_dump(), "round": first}).model_dump()
            for first, (*_, tuning) in zip(starts, self._stages, strict=True)
            if first < num_rounds
        ]
        values = self._job.model_dump(exclude={"choices", "codec"}, exclude_none=True)
        values["method"] |= {"auto": False}
        values |= {"rounds": num_rounds, "choices": choices}
        values["evaluation"] = {"every": num_rounds, "rows": _SCORED_ROWS}
        # Nothing is rolled back here. It takes as long, and cannot diverge.
        values["optimizer"] |= {"lr": 1e-9}
        return celu.Job.model_validate(values)


def seconds_by_round(
    stages: Stages, num_rounds: int, train: Callable[[celu.Job, Callback], Any]
) -> Callable[[int], float]:
    """Train once more without evaluations; return the seconds after some number of rounds."""
    reports = [(0, 0.0)]

    def record(event: Event) -> None:
        if isinstance(event, RoundDone):
            reports.append((event.round, event.seconds))

    train(stages.job(num_rounds), record)

    def seconds(rounds: int) -> float:
        """Interpolated between two reports; after the last one, at the pace of the last rounds."""
        for (before, earlier), (after, later) in pairwise(reports):
            if rounds <= after:
                return earlier + (later - earlier) * (rounds - before) / (after - before)
        end, last = reports[-1]
        before, earlier = reports[-1 - len(reports) // 2]
        return last + (rounds - end) * (last - earlier) / (end - before)

    return seconds
