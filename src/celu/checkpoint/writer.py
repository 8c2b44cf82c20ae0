"""Runs the jobs that write checkpoints: on a background thread, or inline."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Protocol

from celu.errors import CheckpointError
from celu.threads import DaemonThreads

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
    """Runs each job on a thread, so that neither training nor a link waits for the disk.

    See `Writer`. `submit` waits for the previous job, so at most two snapshots are in memory. A
    job is complete only after `flush`: the end of the process does not wait for the thread. The
    thread ends with its job: a party whose peer restarts often uses many writers.
    """

    def __init__(self, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._last: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """See `Writer`."""
        self.flush()
        thread = DaemonThreads(1, "celu-checkpoint", _lower_priority)
        self._last = thread.submit(job)
        thread.shutdown(wait=False)

    def flush(self) -> None:
        """See `Writer`."""
        last, self._last = self._last, None
        if last is None:
            return
        wait([last], self._timeout_s)
        if not last.done():
            raise CheckpointError(
                f"a checkpoint was not written within {self._timeout_s:g} s; check the disk, and "
                "start again to resume from the previous checkpoint"
            )
        last.result()


def _lower_priority() -> None:
    """On a busy machine, let training run before this thread (Linux)."""
    with suppress(OSError):  # other systems have no priority per thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
