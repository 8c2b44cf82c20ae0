"""Reads events from a file that may still grow; a line is read once it is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from celu.errors import ConfigError
from celu.events import EVENT_TYPES, Event, is_deep

EVENTS = "events.jsonl"


def read_new_events(
    folder: Path, position: int = 0, max_bytes: int | None = None
) -> tuple[list[Event], int]:
    """The events after a byte position in a run folder's file, and the next position.

    With `max_bytes` it reads that many bytes and the rest of the last line. An incomplete last
    line is left for the next call. Raises ConfigError if the file cannot be read, is shorter than
    `position`, or holds a line that is not an event.
    """
    path = folder / EVENTS
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(position)
            new = file.read(min(max(0, size - position), size if max_bytes is None else max_bytes))
            if max_bytes is not None:
                new += file.readline()
    except OSError as error:
        raise ConfigError(
            f"{folder}: not a run folder, {EVENTS} cannot be read ({error.strerror or error}); "
            "pass the folder that celu run or celu simulate printed"
        ) from error
    if size < position:
        raise ConfigError(
            f"{path}: expected at least the {position} bytes read before, got {size}; another run "
            "now writes to this folder: read it again from the start"
        )
    complete = new[: new.rfind(b"\n") + 1]
    events = []
    start = position
    for line in complete.splitlines(keepends=True):
        events.append(_parse(path, start, line))
        start += len(line)
    return events, start


def _parse(path: Path, start: int, line: bytes) -> Event:
    try:
        content: Any = json.loads(line)
        if is_deep(content):
            raise ValueError("too many levels")
        kind, _ = EVENT_TYPES.get(content["event"], Event), content["t"]
        return kind.model_validate(content)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        with path.open("rb") as file:
            number = file.read(start).count(b"\n") + 1
        raise ConfigError(
            f"{path}, line {number}: expected an event as celu writes it, got {_problem(error)}; "
            "was the file edited, or is the disk damaged? Remove that line to read the rest"
        ) from error


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, ValueError | RecursionError):
        return "invalid JSON"
    return "JSON without a time and an event name"
