"""Ctrl-C during a run: the first stops at the next checkpoint, the second immediately."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from celu.cli.console import Console
from celu.events import CheckpointTaken, Event, TrainingStarted


class InterruptHandler:
    """A context manager that handles SIGINT, and stops the run from its event callback.

    Before training starts there is no checkpoint to wait for, so the first Ctrl-C stops the run.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._is_training = False
        self._is_stopping = False
        self._previous: Any = None

    def __enter__(self) -> InterruptHandler:
        self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def event(self, event: Event) -> None:
        """Raises KeyboardInterrupt at the first checkpoint after Ctrl-C."""
        if isinstance(event, TrainingStarted):
            self._is_training = True
        elif isinstance(event, CheckpointTaken) and self._is_stopping:
            self._console.print(f"{self._name}: stopping after round {event.round:,}")
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_stopping or not self._is_training:
            raise KeyboardInterrupt
        self._is_stopping = True
        self._console.print(
            f"{self._name}: stopping at the next checkpoint, so that no work is lost; "
            "press Ctrl-C again to stop immediately"
        )
