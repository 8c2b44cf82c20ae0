"""Runs the jobs that write checkpoints: on a background thread, or inline."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from celu.errors import CheckpointError

_TIMEOUT_S = 600.0  # for one checkpoint


class Writer(Protocol):
    """Runs one job at a time, in order."""

    def submit(self, job: Callable[[], None]) -> None:
        """Start a job once the previous one is done; raises what the previous one raised."""
        ...

    def flush(self) -> None:
        """Wait for the last job; raises what it raised."""
        ...


class InlineWriter:
    """Runs each job before `submit` returns; see `Writer`."""

    def submit(self, job: Callable[[], None]) -> None:
        """See `Writer`."""
        job()

    def flush(self) -> None:
        """See `Writer`."""


class BackgroundWriter:
    """Runs jobs on its own thread, so that neither training nor a link waits for the disk.

    See `Writer`. `submit` waits for the previous job, so at most two snapshots are in memory.
    """

    def __init__(self, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(1, "celu-checkpoint", initializer=_lower_priority)
        self._last: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """See `Writer`."""
        self.flush()
        self._last = self._thread.submit(job)

    def flush(self) -> None:
        """See `Writer`."""
        last, self._last = self._last, None
        if last is None:
            return
        try:
            last.result(self._timeout_s)
        except TimeoutError as error:
            raise CheckpointError(
                f"a checkpoint was not written within {self._timeout_s:g} s; check the disk, and "
                "start again to resume from the previous checkpoint"
            ) from error


def _lower_priority() -> None:
    """On a busy machine, let training run before this thread (Linux)."""
    with suppress(OSError):  # other systems have no priority per thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
