"""A run's numbers for the trackers that a party names, from the same events as its record.

A tracker stands beside a run: what goes wrong in it is told once and never ends the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from celu.errors import ConfigError
from celu.events import SIMILARITY_QUANTILES, Evaluated, Event, RoundDone, TrainingStarted

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"  # in the run folder


class TensorBoard:
    """Listens to a run's events, and writes them for TensorBoard; the step is the round.

    Raises ConfigError where the package is missing. `say` is told why it gave up, if it did.
    """

    def __init__(self, run_dir: Path, say: Callable[[str], None]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                'tracking = ["tensorboard"]: expected the package tensorboard, got none; '
                'install it with: pip install "celu[tensorboard]"'
            ) from error
        self._open = SummaryWriter
        self._folder = run_dir / FOLDER
        self._say = say
        self._writer: SummaryWriter | None = None
        self._last: RoundDone | None = None
        self._gave_up = False

    def event(self, event: Event) -> None:
        """Write what TensorBoard shows of an event."""
        if self._gave_up:
            return
        try:
            self._take(event)
        except Exception as error:  # whatever it is, the run goes on
            self._give_up(error)

    def close(self) -> None:
        """Write what is left."""
        try:
            if self._writer is not None and not self._gave_up:
                self._writer.close()
        except Exception as error:  # as above
            self._give_up(error)

    def _take(self, event: Event) -> None:
        if isinstance(event, TrainingStarted):
            if self._writer is not None:
                self._writer.close()
            # What an earlier attempt wrote of later rounds is to be left out.
            self._writer = self._open(str(self._folder), purge_step=event.round + 1)
            self._last = None
        if self._writer is None:
            return
        if isinstance(event, RoundDone):
            for name, value in _of_round(event, self._last):
                self._write(name, value, event.round)
            self._last = event
        elif isinstance(event, Evaluated):
            for name, value in event.metrics.items():
                self._write(f"held-out/{name}", value, event.round)

    def _write(self, name: str, value: float, round_: int) -> None:
        assert self._writer is not None  # it was opened when training began
        if math.isfinite(value):
            self._writer.add_scalar(name, value, round_)

    def _give_up(self, error: Exception) -> None:
        self._gave_up = True
        self._say(f"tracking: tensorboard is left out from here on: {error!r}")


def _of_round(event: RoundDone, last: RoundDone | None) -> Iterator[tuple[str, float]]:
    """What a report says, by names; rates need the one before."""
    if event.loss is not None:
        yield "training/loss", event.loss
    yield "bytes/sent", event.bytes_sent
    yield "bytes/received", event.bytes_received
    yield "local/steps", event.local_steps
    yield "local/bubbles", event.bubbles
    if event.staleness is not None:
        yield "local/staleness", event.staleness
    for at, value in zip(SIMILARITY_QUANTILES, event.similarity_quantiles or (), strict=False):
        yield f"similarity/{at:.0%}", value
    if last is not None and event.seconds > last.seconds:
        seconds = event.seconds - last.seconds
        yield "link/sent Mbps", (event.bytes_sent - last.bytes_sent) * 8e-6 / seconds
        yield "link/received Mbps", (event.bytes_received - last.bytes_received) * 8e-6 / seconds
        yield "time/waiting share", (event.waited_s - last.waited_s) / seconds
