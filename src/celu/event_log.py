"""A run's log, `events.jsonl`: one JSON object per line, with the seconds since the start.

A run that resumes appends to the log of its earlier attempts. Lines that cannot be read are removed
with a warning event, and `events.jsonl.damaged` is a copy of the log with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from celu.errors import CheckpointError, ConfigError
from celu.events import MAX_SECONDS, Attempt, Event, Warned, is_deep

LOG, DAMAGED = "events.jsonl", "events.jsonl.damaged"


class LogFile(Protocol):
    """The file of a log; each operation raises OSError when it fails."""

    def lines(self) -> Iterator[bytes]:
        """The lines of the file, one at a time: the log of a long run is large."""
        ...

    def append(self, line: bytes) -> None:
        """Add a line at the end."""
        ...

    def truncate(self, size: int) -> None:
        """Drop all but the first bytes."""
        ...

    def copy_damaged(self) -> Iterator[bytes]:
        """Copy a damaged log to a file beside it; returns the lines of the copy."""
        ...


@dataclass
class _EarlierEvents:
    """A summary of the events of earlier attempts at a run."""

    num_attempts: int = 0
    latest_s: float = 0.0
    has_started: bool = False
    num_damaged: int = 0  # lines
    num_bytes: int = 0  # of complete lines
    has_incomplete_line: bool = False  # the last one

    def add(self, line: bytes) -> None:
        """Count a line."""
        if not line.endswith(b"\n"):
            self.has_incomplete_line = True
            return
        self.num_bytes += len(line)
        event = _parse(line)
        if event is None:
            self.num_damaged += 1
            return
        self.num_attempts += event["event"] == "attempt"
        self.latest_s = max(self.latest_s, event["t"])
        self.has_started |= event["event"] in ("started", "resumed")


class EventLog:
    """Appends events to the log of a run in `folder`, after those of earlier attempts.

    Raises ConfigError if the log belongs to a run that cannot be resumed, or if celu did not write
    it, and CheckpointError if the file cannot be written.
    """

    def __init__(
        self, folder: Path, file: LogFile, clock: Callable[[], float], *, can_resume: bool
    ) -> None:
        self._path = folder / LOG
        self._file = file
        self._clock = clock
        self._earlier = self._read_earlier(can_resume)
        self._started = clock() - self._earlier.latest_s

    @property
    def seconds(self) -> float:
        """The time since the run started; it continues from that of earlier attempts."""
        return self._clock() - self._started

    def opening_events(self) -> Iterator[Event]:
        """The events with which this attempt starts."""
        yield Attempt(number=self._earlier.num_attempts + 1)
        if num_damaged := self._earlier.num_damaged:
            yield Warned(message=f"{LOG}: {num_damaged} damaged lines removed; see {DAMAGED}")

    def append(self, event: Event) -> Event:
        """Write an event, and return it with its time."""
        seconds = round(self.seconds, 4)
        line = json.dumps({"t": seconds, "event": event.event, **event.fields}) + "\n"
        with reporting_write_errors(self._path):
            self._file.append(line.encode())
        return event.model_copy(update={"t": seconds})

    def _read_earlier(self, can_resume: bool) -> _EarlierEvents:
        """Read the events of earlier attempts, and remove damaged lines.

        An incomplete last line is cut off.
        """
        earlier = _read_events(self._path.parent, self._file.lines(), can_resume)
        with reporting_write_errors(self._path):
            if earlier.num_damaged:
                lines = self._file.copy_damaged()
                self._file.truncate(0)  # in place: the folder's lock belongs to this file
                for line in lines:
                    if line.endswith(b"\n") and _parse(line) is not None:
                        self._file.append(line)
            elif earlier.has_incomplete_line:
                self._file.truncate(earlier.num_bytes)
        return earlier


def check_log(folder: Path, lines: Iterable[bytes], *, can_resume: bool) -> None:
    """Raise the ConfigError of `EventLog` for the log of a folder; writes nothing."""
    _read_events(folder, lines, can_resume)


def _read_events(folder: Path, lines: Iterable[bytes], can_resume: bool) -> _EarlierEvents:
    earlier = _EarlierEvents()
    for line in lines:
        earlier.add(line)
    if (earlier.num_damaged or earlier.has_started) and not can_resume:
        raise ConfigError(
            f"{folder}: the folder contains the {LOG} of a run that cannot be resumed; choose "
            "another folder with --out, or remove this one"
        )
    return earlier


def can_resume(names: Iterable[str], checkpoint_names: Iterable[str]) -> bool:
    """Whether a run folder with these files and checkpoints identifies the run to resume.

    Each checkpoint does, also one that was set aside, and so does `run.json`.
    """
    states = ("round-", "superseded-", "discarded-")
    return "run.json" in names or any(name.startswith(states) for name in checkpoint_names)


def _parse(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None if the line is damaged."""
    try:
        event: dict[str, Any] = json.loads(line)
        is_event = isinstance(event["event"], str) and abs(event["t"]) <= MAX_SECONDS
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return event if is_event and not is_deep(event) else None


@contextmanager
def reporting_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a CheckpointError with the file and the next step."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError):
            step = "it is a file, or in one; name a folder in run_dir or --out"
        else:
            step = (
                "free some space or check the disk, and start again at all parties: the run "
                "resumes from its last checkpoint"
            )
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror or error}); {step}"
        ) from error
