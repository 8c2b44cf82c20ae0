"""A run that is followed live: a snapshot for a page that opens, and updates since then.

It reads one of this party's own run folders and never writes to it. Memory use stays small: of a
long run it retains some thousand events, and only the most recent ones retain their spans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from celu.audit.tables import audit_content
from celu.doctor.facts import Finding
from celu.doctor.live_rules import RunStatus, warnings
from celu.errors import ConfigError
from celu.events import Evaluated, RoundDone, TrainingStarted
from celu.record.folders import labels, read_runs
from celu.record.recent import NUM_RECENT, RecentRounds
from celu.record.run import RunRecord
from celu.record.series import learning_series, throughput_series
from celu.record.summary import describe_event, summarize
from celu.record.tail import EVENTS
from celu.record.timeline import choose_window, spans_in

# Of a snapshot's series; as many may be appended before a new snapshot. `compact` leaves the latest
# events in place, and these are more.
_MAX_POINTS = 600
_MAX_EVENTS = 10_000  # then `compact` drops about half of them
_READ_BYTES = 4 * 1024 * 1024  # at a time, and then events are dropped again
_MAX_LOG_ENTRIES = 30  # the most recent ones


class LiveRun:
    """One run. `refresh` reads what is new; `clock` returns the time of day, as file times do.

    A page's position in a run is a number of events; `new_points` returns what came after it.
    When `generation` changes, earlier events were rolled back or replaced, and a page needs a new
    snapshot (`series`).
    """

    def __init__(
        self, record: RunRecord, label: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.record = record
        self.label = label
        self.generation = 0
        self._clock = clock
        self._read_error: str | None = None
        # What depends on the record alone, and the version of the record it was computed for.
        self._cached: tuple[object, RunStatus, dict[str, Any]] | None = None
        _bound_memory(record)
        self.refresh()
        self.generation = 0

    @property
    def position(self) -> int:
        """The number of events read so far."""
        return self.record.num_read

    def refresh(self) -> None:
        """Read new events. A folder that cannot be read becomes a warning, not an error."""
        try:
            for needs_snapshot in _read_parts(self.record):
                self.generation += needs_snapshot
        except ConfigError:
            # Another run may have taken the folder: try to read it from the start.
            try:
                other = RunRecord(self.record.path, _READ_BYTES)
                for _ in _read_parts(other):
                    pass
            except ConfigError as error:
                self._read_error = str(error)
                return
            self.record = other
            self.generation += 1
        self._read_error = None

    def series(self) -> dict[str, Any]:
        """The series of the whole run, downsampled."""
        return learning_series(self.record.rounds, self.record.evaluations, _MAX_POINTS)

    def new_points(self, snapshot_position: int, position: int) -> dict[str, Any] | None:
        """The points of `series` after a position; None if there are none.

        Raises ValueError if too much was appended since `snapshot_position`, where the page last
        got `series`: then a new snapshot is smaller.
        """
        appended = self.position - snapshot_position
        if appended > _MAX_POINTS:
            raise ValueError(f"expected at most {_MAX_POINTS} new events, got {appended}")
        # Counted from the end, since `compact` drops earlier events.
        new = self.record.events[len(self.record.events) - (self.position - position) :]
        rounds = [event for event in new if isinstance(event, RoundDone)]
        evaluations = [event for event in new if isinstance(event, Evaluated)]
        return learning_series(rounds, evaluations) if rounds or evaluations else None

    def state(self) -> dict[str, Any]:
        """The current state of the run: everything but the learning series."""
        version = (self.generation, self.position, self.record.status)
        if self._cached is None or self._cached[0] != version:
            status = RunStatus.from_record(self.record)
            self._cached = (version, status, self._state_of_record(status.latest))
        _, status, state = self._cached
        found = warnings(replace(status, quiet_s=self._quiet_s()))
        if self._read_error is not None:
            found.insert(0, Finding("record", "warn", self._read_error))
        return {**state, "warnings": [[f.topic, f.message, f.fix, f.level] for f in found]}

    def _state_of_record(self, recent: RecentRounds | None) -> dict[str, Any]:
        """The part of the state that changes only with the record."""
        record = self.record
        rounds = record.rounds
        others = (event for event in record.events if not isinstance(event, RoundDone))
        event_log = [[event.t, *text] for event in others if (text := describe_event(event))]
        return {
            "summary": {**summarize(record), **self._recent_summary(rounds, recent)},
            **throughput_series(rounds),
            "window": _recent_window(rounds[-NUM_RECENT - 1 :]),
            "table": rounds[-1].table if rounds else None,
            "event_log": event_log[-_MAX_LOG_ENTRIES:],
            "audit": audit_content(record.path),
        }

    def _recent_summary(
        self, rounds: Sequence[RoundDone], recent: RecentRounds | None
    ) -> dict[str, Any]:
        """The recent pace, and what it predicts for the remaining rounds."""
        if recent is None:
            return {}
        total = self.record.num_rounds
        remaining = 0 if total is None else total - rounds[-1].round
        is_training = self.record.status == "running" and remaining > 0
        return {
            "recent_round_s": recent.round_s,
            "recent_waiting_share": recent.waited,
            "sending_share": recent.sending,
            "receiving_share": recent.receiving,
            "recent_local_steps": recent.local_steps / recent.rounds,
            "recent_bubbles": recent.bubbles / recent.rounds,
            "remaining_s": remaining * recent.round_s if is_training else None,
            "remaining_bytes": remaining * recent.round_bytes if is_training else None,
        }

    def _quiet_s(self) -> float:
        """Seconds since the run last wrote an event."""
        try:
            written = (self.record.path / EVENTS).stat().st_mtime
        except OSError:
            return 0.0  # refresh() reports this as a read error
        return max(0.0, self._clock() - written)


def open_runs(paths: Sequence[Path]) -> list[LiveRun]:
    """Follow these run folders; raises ConfigError for a bad folder or one that is given twice."""
    records = read_runs(paths, _READ_BYTES)
    return [LiveRun(*one) for one in zip(records, labels(records), strict=True)]


def _read_parts(record: RunRecord) -> Iterator[bool]:
    """Read all new events, in parts; yields whether a page needs a new snapshot after a part."""
    while True:
        before = record.num_read
        new = record.refresh()
        is_replaced = len(new) != record.num_read - before
        yield is_replaced or any(isinstance(event, TrainingStarted) for event in new)
        if not new:
            return
        _bound_memory(record)


def _bound_memory(record: RunRecord) -> None:
    record.drop_spans(NUM_RECENT)
    if len(record.events) > _MAX_EVENTS:
        record.compact()


def _recent_window(rounds: Sequence[RoundDone]) -> dict[str, Any] | None:
    """The spans of the most recent rounds, in seconds since the first of them started."""
    window = choose_window(rounds, 1.0)
    if window is None:
        return None
    return {
        "first": window.first_round,
        "last": window.last_round,
        "seconds": window.seconds,
        "spans": spans_in(rounds, window),
    }
