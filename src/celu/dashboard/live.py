"""A run that is followed: what a page shows of it at first, and what has come since.

It reads a run folder of this party's own, and never writes to it. Memory stays small: a run makes
some thousand reports at most, and only the last of them keep their spans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from celu.doctor.facts import Finding
from celu.doctor.live_rules import RunStatus, warnings
from celu.errors import ConfigError
from celu.events import Evaluated, RoundDone, TrainingStarted
from celu.record.folders import labels, read_runs
from celu.record.latest import REPORTS, Latest
from celu.record.run import RunRecord
from celu.record.series import series_of, use_of
from celu.record.summary import figures, in_words
from celu.record.tail import EVENTS
from celu.record.timeline import spans_in, window_at

_POINTS = 600  # of a line, at first; as many may be added before a reader begins anew
_HAPPENINGS = 30  # that a page lists, the latest


class LiveRun:
    """One run. `refresh` reads on; `clock` tells the time of day, as the file system does.

    A place in a run is a number of events; `added` tells what came after one. Where `story` has
    changed, earlier events no longer hold, and a reader begins with `lines` again.
    """

    def __init__(
        self, record: RunRecord, label: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.record = record
        self.label = label
        self.story = 0
        self._clock = clock
        self._trouble: str | None = None
        self._told: tuple[object, RunStatus, dict[str, Any]] | None = None  # for which version
        self.record.forget_spans(REPORTS)

    @property
    def place(self) -> int:
        """Where the reader is."""
        return len(self.record.events)

    def refresh(self) -> None:
        """Read what is new. A folder that cannot be read is a warning, not an error."""
        before = self.place
        try:
            new = self.record.refresh()
            begins_anew = len(new) != self.place - before
        except ConfigError:
            # The folder may be another run's by now: its beginning tells.
            try:
                self.record = RunRecord(self.record.path)
            except ConfigError as error:
                self._trouble = str(error)
                return
            new, begins_anew = self.record.events, True
        self._trouble = None
        if begins_anew or any(isinstance(event, TrainingStarted) for event in new):
            self.story += 1
        if new:
            self.record.forget_spans(REPORTS)

    def lines(self) -> dict[str, Any]:
        """All of the run as lines, downsampled."""
        return series_of(self.record.rounds, self.record.evaluations, _POINTS)

    def added(self, since: int, place: int) -> dict[str, Any] | None:
        """The points of these lines after a place; None where there is none.

        `since` is the place at which the reader had `lines`. Raises ValueError where so much was
        added since that it is better told as lines again.
        """
        if self.place - since > _POINTS:
            raise ValueError(f"expected at most {_POINTS} new events, got {self.place - since}")
        new = self.record.events[place:]
        rounds = [event for event in new if isinstance(event, RoundDone)]
        evaluations = [event for event in new if isinstance(event, Evaluated)]
        return series_of(rounds, evaluations) if rounds or evaluations else None

    def state(self) -> dict[str, Any]:
        """How the run is now: what is not a line."""
        version = (self.story, self.place, self.record.status)
        if self._told is None or self._told[0] != version:
            underway = RunStatus.from_record(self.record)
            self._told = (version, underway, self._recorded(underway.latest))
        _, underway, recorded = self._told
        found = warnings(replace(underway, quiet_s=self._quiet_s()))
        if self._trouble is not None:
            found.insert(0, Finding("record", "warn", self._trouble))
        return {**recorded, "warnings": [[f.topic, f.message, f.fix] for f in found]}

    def _recorded(self, latest: Latest | None) -> dict[str, Any]:
        """What changes with the record alone."""
        record = self.record
        rounds = record.rounds
        others = (event for event in record.events if not isinstance(event, RoundDone))
        happened = [[event.t, *words] for event in others if (words := in_words(event))]
        return {
            "figures": {**figures(record), **self._pace(rounds, latest)},
            **use_of(rounds),
            "window": _window(rounds[-REPORTS - 1 :]),
            "table": rounds[-1].table if rounds else None,
            "happened": happened[-_HAPPENINGS:],
        }

    def _pace(self, rounds: Sequence[RoundDone], latest: Latest | None) -> dict[str, Any]:
        if latest is None:
            return {}
        total = self.record.num_rounds
        left = 0 if total is None else total - rounds[-1].round
        is_going_on = self.record.status == "running" and left > 0
        return {
            "late_round_s": latest.round_s,
            "late_waited": latest.waited,
            "sending": latest.sending,
            "receiving": latest.receiving,
            "late_steps": latest.local_steps / latest.rounds,
            "late_bubbles": latest.bubbles / latest.rounds,
            "left_s": left * latest.round_s if is_going_on else None,
            "left_bytes": left * latest.round_bytes if is_going_on else None,
        }

    def _quiet_s(self) -> float:
        """Since the run last wrote anything."""
        try:
            written = (self.record.path / EVENTS).stat().st_mtime
        except OSError:
            return 0.0  # told as trouble
        return max(0.0, self._clock() - written)


def watch(paths: Sequence[Path]) -> list[LiveRun]:
    """Follow these run folders; raises ConfigError for what is no run folder, or named twice."""
    records = read_runs(paths)
    return [LiveRun(*one) for one in zip(records, labels(records), strict=True)]


def _window(rounds: Sequence[RoundDone]) -> dict[str, Any] | None:
    """The latest rounds closely, in seconds from when the first of them began."""
    window = window_at(rounds, 1.0)
    if window is None:
        return None
    return {
        "first": window.first,
        "last": window.last,
        "seconds": window.stop - window.start,
        "spans": spans_in(rounds, window, 0.0),
    }
