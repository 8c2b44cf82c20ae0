"""Experiment trackers, fed by a run's events. Today: TensorBoard.

A tracker never ends the run: it reports its first error and stops tracking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from celu.errors import ConfigError
from celu.events import (
    SIMILARITY_QUANTILES,
    Evaluated,
    Event,
    ModelTested,
    RoundDone,
    TrainingStarted,
)

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"  # in the run folder


class TensorBoard:
    """Writes a run's events for TensorBoard; the step is the round.

    Raises ConfigError if the package is missing. `warn` is called once, if tracking fails.
    """

    def __init__(self, run_dir: Path, warn: Callable[[str], None]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                'tracking = ["tensorboard"]: the package tensorboard is not installed; '
                'install it with: pip install "celu[tensorboard]"'
            ) from error
        self._open_writer = SummaryWriter
        self._folder = run_dir / FOLDER
        self._warn = warn
        self._writer: SummaryWriter | None = None
        self._last: RoundDone | None = None
        self._has_failed = False

    def event(self, event: Event) -> None:
        """Write the event's scalars, if it has any."""
        if self._has_failed:
            return
        try:
            self._write_event(event)
        except Exception as error:  # any error: the run continues without tracking
            self._fail(error)

    def close(self) -> None:
        """Flush and close the files."""
        try:
            if self._writer is not None and not self._has_failed:
                self._writer.close()
        except Exception as error:  # as above
            self._fail(error)

    def _write_event(self, event: Event) -> None:
        if isinstance(event, TrainingStarted):
            if self._writer is not None:
                self._writer.close()
            # Drop the rounds that an earlier attempt wrote and this one repeats.
            self._writer = self._open_writer(str(self._folder), purge_step=event.round + 1)
            self._last = None
        if self._writer is None:
            return
        if isinstance(event, RoundDone):
            for name, value in _round_scalars(event, self._last):
                self._write_scalar(name, value, event.round)
            self._last = event
        elif isinstance(event, Evaluated):
            for name, value in event.metrics.items():
                self._write_scalar(f"held-out/{name}", value, event.round)
        elif isinstance(event, ModelTested):
            for name, value in event.metrics.items():
                self._write_scalar(f"test/{name}", value, event.round)

    def _write_scalar(self, name: str, value: float, round_: int) -> None:
        assert self._writer is not None  # opened when training starts
        if math.isfinite(value):
            self._writer.add_scalar(name, value, round_)

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._warn(f"tracking: tensorboard failed and is off for the rest of this run: {error!r}")


def _round_scalars(event: RoundDone, last: RoundDone | None) -> Iterator[tuple[str, float]]:
    """An event's scalars by name; rates are since the `last` event."""
    if event.loss is not None:
        yield "training/loss", event.loss
    if event.lr is not None:
        yield "training/lr", event.lr
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
