"""Answers requests on a few threads, several together: what waits is taken at once.

While a thread waits for hosts, requests queue. The next free thread takes all of them, up to
`max_rows`, so a busy server sends few large asks instead of many small ones. Nothing waits for a
batch to fill up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from celu.errors import RequestError
from celu.serving.inference_protocol import Answer, InferRequest

Outcome = Answer | Exception
_STOP_S = 10.0


@dataclass(eq=False, slots=True)
class Job:
    """A request, and where its answer goes; `done` is called on any thread."""

    request: InferRequest
    deadline_at: float
    done: Callable[[Outcome], object]

    @property
    def num_rows(self) -> int:
        """The number of rows of the request."""
        return len(self.request.ids)


Work = Callable[[list[Job]], list[Outcome]]


class Batcher:
    """A context manager with `num_threads` threads that call `work` with one or more jobs."""

    def __init__(
        self,
        work: Work,
        *,
        max_rows: int,
        max_jobs: int,
        num_threads: int = 4,
    ) -> None:
        self._work = work
        self._max_rows = max_rows
        self._max_jobs = max_jobs
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"inference-{number}", daemon=True)
            for number in range(num_threads)
        ]

    def __enter__(self) -> Batcher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_STOP_S)

    def submit(self, job: Job) -> None:
        """Queue a job; raises RequestError (429) if too many wait."""
        with self._changed:
            if self._closing:
                raise RequestError("the server is stopping", status=503)
            if len(self._jobs) >= self._max_jobs:
                raise RequestError(
                    f"more than {self._max_jobs} requests wait; retry later", status=429
                )
            self._jobs.append(job)
            self._changed.notify()

    def _run(self) -> None:
        while jobs := self._take():
            for job, outcome in zip(jobs, self._outcomes(jobs), strict=True):
                job.done(outcome)

    def _outcomes(self, jobs: list[Job]) -> list[Outcome]:
        try:
            return self._work(jobs)
        except Exception as error:  # a bug: these requests fail, the thread continues
            return [error] * len(jobs)

    def _take(self) -> list[Job]:
        """All jobs that wait, up to the maximum of rows; none when it is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing)
            jobs: list[Job] = []
            num_rows = 0
            while self._jobs and (not jobs or num_rows + self._jobs[0].num_rows <= self._max_rows):
                jobs.append(self._jobs.popleft())
                num_rows += jobs[-1].num_rows
            if self._jobs:
                self._changed.notify()
            return jobs
