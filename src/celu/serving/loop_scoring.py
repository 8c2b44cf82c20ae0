"""Scores small requests on the event loop of the HTTP server, which saves two changes of threads.

While hosts are asked, requests queue. When an answer arrives, all of them go out as one ask, so a
busy server sends few large asks instead of many small ones. Nothing waits for a batch to fill up.
What would hold up the loop goes to threads: large requests, and for a while all requests after work
that took long.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from celu.errors import CeluError
from celu.serving.batching import Batcher, Job, Outcome
from celu.transport.asker import MAX_IN_FLIGHT, Call

MAX_ROWS_HERE = 64  # of requests that are scored together
SLOW_S = 0.005  # work that took longer holds up the loop ...
_ON_THREADS_S = 1.0  # ... so threads do it for this time


class Begun(Protocol):
    """Jobs whose hosts were asked; see `inference.Begun`."""

    deadline_at: float

    @property
    def calls(self) -> Sequence[Call]:
        """The asks in flight."""
        ...

    def asks_again(self) -> bool:
        """Whether `outcomes` waits although all calls have finished."""
        ...

    def outcomes(self) -> list[Outcome]:
        """An outcome for each job."""
        ...


class LoopScoring:
    """Takes jobs on the thread of an event loop; `begin` starts some and never waits.

    A job that this loop should not score goes to `threads`.
    """

    def __init__(
        self,
        begin: Callable[[list[Job]], Begun],
        threads: Batcher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._begin = begin
        self._threads = threads
        self._clock = clock
        self._jobs: deque[Job] = deque()
        self._num_begun = 0
        self._on_threads_until = -float("inf")

    def submit(self, job: Job) -> None:
        """Score a job; its `done` may be called before this returns. Raises RequestError."""
        if job.num_rows > MAX_ROWS_HERE or self._clock() < self._on_threads_until:
            self._threads.submit(job)
            return
        if self._num_begun < MAX_IN_FLIGHT:  # so no job waits
            self._try([job])
        else:
            self._jobs.append(job)

    def _begin_next(self) -> None:
        while self._jobs and self._num_begun < MAX_IN_FLIGHT:
            self._try(self._take())

    def _try(self, jobs: list[Job]) -> None:
        self._num_begun += 1
        try:
            self._start(jobs)
        except Exception as error:  # a bug: these requests fail, others are answered
            self._end(jobs, [error] * len(jobs))

    def _take(self) -> list[Job]:
        """All jobs that wait, up to the maximum of rows."""
        jobs = [self._jobs.popleft()]
        num_rows = jobs[0].num_rows
        while self._jobs and num_rows + self._jobs[0].num_rows <= MAX_ROWS_HERE:
            jobs.append(self._jobs.popleft())
            num_rows += jobs[-1].num_rows
        return jobs

    def _start(self, jobs: list[Job]) -> None:
        started = self._clock()
        begun = self._begin(jobs)
        calls = begun.calls
        if not calls or all(call.has_finished for call in calls):
            self._finish(jobs, begun, started)
            return
        self._watch(started)
        loop = asyncio.get_running_loop()
        is_finished = False

        def finish() -> None:
            nonlocal is_finished
            if not is_finished:
                is_finished = True
                deadline.cancel()
                self._finish(jobs, begun, self._clock())
                self._begin_next()

        def finish_if_all() -> None:
            if all(call.has_finished for call in calls):
                finish()

        def on_finish() -> None:
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(finish_if_all)

        deadline = loop.call_later(max(0.0, begun.deadline_at - self._clock()), finish)
        for call in calls:
            call.notify(on_finish)

    def _finish(self, jobs: list[Job], begun: Begun, started: float) -> None:
        if begun.calls and begun.asks_again():  # which waits
            self._num_begun -= 1
            for job in jobs:
                try:
                    self._threads.submit(job)
                except CeluError as error:
                    job.done(error)
            return
        try:
            outcomes = begun.outcomes()
        except Exception as error:  # a bug: these requests fail, others are answered
            outcomes = [error] * len(jobs)
        self._watch(started)
        self._end(jobs, outcomes)

    def _end(self, jobs: list[Job], outcomes: Sequence[Outcome]) -> None:
        self._num_begun -= 1
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.done(outcome)

    def _watch(self, started: float) -> None:
        now = self._clock()
        if now - started > SLOW_S:
            self._on_threads_until = now + _ON_THREADS_S
