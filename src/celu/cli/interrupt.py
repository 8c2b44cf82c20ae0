"""What Ctrl-C means in a run: stop at the next checkpoint; a second time, at once."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from rich.console import Console

from celu.events import CheckpointTaken, Event, TrainingStarted


class InterruptHandler:
    """Listens to a run's events and to SIGINT; use as a context manager.

    Before training has begun there is nothing to wait for: then the first one ends the run.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._trains = False
        self._is_asked = False
        self._before: Any = None

    def __enter__(self) -> InterruptHandler:
        self._before = signal.signal(signal.SIGINT, self._asked)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def event(self, event: Event) -> None:
        """Raises KeyboardInterrupt at a checkpoint where that was asked for."""
        if isinstance(event, TrainingStarted):
            self._trains = True
        elif isinstance(event, CheckpointTaken) and self._is_asked:
            self._console.print(f"{self._name}: stops after round {event.round:,}")
            raise KeyboardInterrupt

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self._is_asked or not self._trains:
            raise KeyboardInterrupt
        self._is_asked = True
        self._console.print(
            f"{self._name}: stops at the next checkpoint, so that nothing is lost; Ctrl-C again: "
            "at once"
        )
