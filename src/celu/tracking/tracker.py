"""A callback that sends a run's metrics to an experiment tracker.

A tracker never ends a run and never holds one up: it works on a thread of its own, reports its
first error and stops tracking. Which metrics an event has is decided here; the backends write them.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, get_args

from celu.config.job import Job
from celu.config.party import TrackerName
from celu.errors import ConfigError
from celu.events import (
    SIMILARITY_QUANTILES,
    Evaluated,
    Event,
    ModelTested,
    RoundDone,
    TrainingStarted,
)
from celu.threads import DaemonThreads
from celu.tracking.mlflow import MLflow
from celu.tracking.tensorboard import TensorBoard
from celu.tracking.wandb import WeightsAndBiases

CLOSE_S = 60.0  # for what is still to be written at the end of a run
MAX_WAITING = 10_000  # events; a tracker that is further behind loses some
_TRACKED = TrainingStarted | RoundDone | Evaluated | ModelTested


class Backend(Protocol):
    """Where a tracker writes. All methods are called on one thread, and may raise anything."""

    def open(self, round_: int) -> None:
        """Start a run, or continue it after `round_` rounds; may be called again."""

    def write(self, scalars: Mapping[str, float], round_: int) -> None:
        """Write finite numbers by name; the step is the round."""

    def close(self, succeeded: bool) -> None:
        """Flush, and end the run; called only after `open`."""


BACKENDS: dict[TrackerName, Callable[[Path, str, Mapping[str, Any]], Backend]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)


class Tracker:
    """A callback that tracks a run in "tensorboard", "mlflow" or "wandb"; a context manager.

        with celu.Tracker("mlflow", "runs/first", job=job) as tracker:
            celu.simulate(job, guest, hosts, callbacks=[tracker])

    It writes to `folder`, and continues there when a run is resumed. `name` and the settings of
    `job` describe the run to the tracker. Raises ConfigError if the tracker is unknown or its
    package is missing. `warn` is called with a message once tracking fails; the run continues.
    """

    def __init__(
        self,
        kind: TrackerName,
        folder: Path | str,
        *,
        name: str = "celu",
        job: Job | None = None,
        warn: Callable[[str], None] = _warn,
    ) -> None:
        if kind not in BACKENDS:
            expected = ", ".join(get_args(TrackerName))
            raise ConfigError(f"tracker: expected one of {expected}, got {kind!r}")
        settings = {} if job is None else job.contract()
        self._kind = kind
        self._backend = BACKENDS[kind](Path(folder).absolute(), name, settings)
        self._warn = warn
        self._thread = DaemonThreads(1, f"celu-{kind}")
        self._room = threading.Semaphore(MAX_WAITING)
        # The thread's own, from here on.
        self._is_open = False
        self._last: RoundDone | None = None
        self._has_failed = False

    def __call__(self, event: Event) -> None:
        """Track an event; returns at once."""
        if self._has_failed or not isinstance(event, _TRACKED):
            return
        if self._room.acquire(blocking=False):
            self._thread.submit(self._track, event)
        else:
            self._fail(f"it is {MAX_WAITING:,} events behind")

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(succeeded=kind is None)

    def close(self, *, succeeded: bool = True) -> None:
        """Write what is left, for at most CLOSE_S, and end the tracker's run."""
        done = self._thread.submit(self._close, succeeded)
        try:
            done.result(CLOSE_S)
        except TimeoutError:
            self._fail(f"it took more than {CLOSE_S:.0f} s to write what was left")
        self._thread.close(timeout_s=0)

    def _track(self, event: Event) -> None:
        self._room.release()
        if self._has_failed:
            return
        try:
            self._write(event)
        except Exception as error:  # any error: the run continues without tracking
            self._fail(repr(error))

    def _close(self, succeeded: bool) -> None:
        if not self._is_open:
            return
        try:
            self._backend.close(succeeded)
        except Exception as error:  # as above
            self._fail(repr(error))

    def _write(self, event: Event) -> None:
        if isinstance(event, TrainingStarted):
            self._backend.open(event.round)
            self._is_open = True
            self._last = None
        elif self._is_open and isinstance(event, RoundDone):
            self._write_scalars(_round_scalars(event, self._last), event.round)
            self._last = event
        elif self._is_open and isinstance(event, Evaluated):
            metrics = ((f"held-out/{name}", value) for name, value in event.metrics.items())
            self._write_scalars(metrics, event.round)
        elif self._is_open and isinstance(event, ModelTested):
            metrics = ((f"test/{name}", value) for name, value in event.metrics.items())
            # At the end of the run: some trackers refuse a step before the last one.
            self._write_scalars(metrics, event.round if self._last is None else self._last.round)

    def _write_scalars(self, scalars: Iterator[tuple[str, float]], round_: int) -> None:
        finite = {name: float(value) for name, value in scalars if math.isfinite(value)}
        if finite:
            self._backend.write(finite, round_)

    def _fail(self, why: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._warn(f"tracking: {self._kind} failed and is off for the rest of this run: {why}")


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
