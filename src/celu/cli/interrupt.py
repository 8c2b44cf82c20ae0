"""Ctrl-C during a run: the first stops at the next checkpoint, the second immediately.

Where the party has several ranks, they stop together, and a second one is ignored: torchrun passes
on an interrupt that the terminal may have sent to the ranks, too, and kills them at its own limit.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING, Any

from celu.cli.console import Console
from celu.events import CheckpointTaken, Event, TrainingStarted

if TYPE_CHECKING:
    from celu.ranks.slices import Slices  # torch takes seconds


class InterruptHandler:
    """A context manager that handles SIGINT, and stops the run from its event callback.

    Before training starts there is no checkpoint to wait for, so the first Ctrl-C stops the run.
    Without a console it prints nothing, as at ranks other than the first.
    """

    def __init__(self, console: Console | None, name: str) -> None:
        self._console = console
        self._name = name
        self._is_training = False
        self._is_stopping = False
        self._previous: Any = None
        self._ranks: Slices | None = None

    def join(self, ranks: Slices) -> None:
        """Stop together with the other ranks of the party; all pass on the same events."""
        self._ranks = ranks if len(ranks.own) < ranks.size else None

    def __enter__(self) -> InterruptHandler:
        self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def event(self, event: Event) -> None:
        """Raises KeyboardInterrupt at the first checkpoint after Ctrl-C."""
        if isinstance(event, TrainingStarted):
            self._is_training = True
        elif isinstance(event, CheckpointTaken) and self._must_stop():
            self._print(f"stopping after round {event.round:,}")
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_alone = self._ranks is None
        if not self._is_training or (self._is_stopping and is_alone):
            raise KeyboardInterrupt
        if self._is_stopping:
            return
        self._is_stopping = True
        again = "press Ctrl-C again to stop immediately" if is_alone else "all ranks stop together"
        self._print(f"stopping at the next checkpoint, so that no work is lost; {again}")

    def _must_stop(self) -> bool:
        return self._is_stopping if self._ranks is None else self._ranks.any(self._is_stopping)

    def _print(self, text: str) -> None:
        if self._console is not None:
            self._console.print(f"{self._name}: {text}")
