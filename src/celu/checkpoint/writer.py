"""Where checkpoints are written: on a thread beside the computing, or then and there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from celu.errors import CheckpointError

_LONGEST_S = 600.0  # that one checkpoint may take


class Writer(Protocol):
    """Does one thing at a time, in order."""

    def do(self, job: Callable[[], None]) -> None:
        """Begin a job once the last is done; raises what that one raised."""
        ...

    def settle(self) -> None:
        """Wait for the last job; raises what it raised."""
        ...


class Inline:
    """Does a job before it returns; see `Writer`."""

    def do(self, job: Callable[[], None]) -> None:
        """See `Writer`."""
        job()

    def settle(self) -> None:
        """See `Writer`."""


class Background:
    """Does jobs on a thread of its own, so that neither training nor a link waits for the disk.

    See `Writer`. One job may be under way: the next waits for it, so memory holds two at most.
    """

    def __init__(self, longest_s: float = _LONGEST_S) -> None:
        self._longest_s = longest_s
        self._thread = ThreadPoolExecutor(1, "celu-checkpoint", initializer=_give_way)
        self._last: Future[None] | None = None

    def do(self, job: Callable[[], None]) -> None:
        """See `Writer`."""
        self.settle()
        self._last = self._thread.submit(job)

    def settle(self) -> None:
        """See `Writer`."""
        last, self._last = self._last, None
        if last is None:
            return
        try:
            last.result(self._longest_s)
        except TimeoutError as error:
            raise CheckpointError(
                f"a checkpoint was not written within {self._longest_s:g} s: expected a disk that "
                "answers; look at it, and start again to go on from the checkpoint before"
            ) from error


def _give_way() -> None:
    """Where a processor is short, let this thread wait rather than training (Linux)."""
    with suppress(OSError):  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
