"""Events from a file that may still grow: each is read once, when its line is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from celu.errors import ConfigError
from celu.events import TYPES, Event

EVENTS = "events.jsonl"


def follow(folder: Path, position: int = 0) -> tuple[list[Event], int]:
    """The events of a run folder from a position in its file on, and the position after them.

    A last line that is only half written is left for the next call. Raises ConfigError where the
    file cannot be read, is shorter than the position, or holds a line that is no event.
    """
    path = folder / EVENTS
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(position)
            new = file.read(max(0, size - position))
    except OSError as error:
        raise ConfigError(
            f"{folder}: expected a run folder with {EVENTS}, got none that can be read "
            f"({error.strerror or error}); name the folder that celu run or celu simulate printed"
        ) from error
    if size < position:
        raise ConfigError(
            f"{path}: expected at least {position} bytes as before, got {size}; another run took "
            "the folder: read it from its beginning"
        )
    whole = new[: new.rfind(b"\n") + 1]
    events = []
    start = position
    for line in whole.splitlines(keepends=True):
        events.append(_event(path, start, line))
        start += len(line)
    return events, start


def _event(path: Path, start: int, line: bytes) -> Event:
    try:
        content: Any = json.loads(line)
        kind, _ = TYPES.get(content["event"], Event), content["t"]
        return kind.model_validate(content)
    except (ValueError, TypeError, KeyError) as error:
        with path.open("rb") as file:
            number = file.read(start).count(b"\n") + 1
        raise ConfigError(
            f"{path}, line {number}: expected an event as celu writes it, got {_what(error)}; "
            "was the file edited, or the disk damaged? Without that line the rest can be read"
        ) from error


def _what(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, ValueError):
        return "no JSON"
    return "JSON without a time and a name"
