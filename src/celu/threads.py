"""Worker threads that cannot delay the end of their process.

Python joins the threads of `concurrent.futures` when a process exits. One that is stuck, for
example in a read from a network drive that does not answer, would then keep a failed run alive.
These are daemon threads. The caller waits for the results it needs, with a timeout.

Python stops daemon threads when it finalizes. One that is in C++ code then, of PyTorch for example,
aborts the process. So at exit the threads get EXIT_S to end, and a command leaves without
finalizing: see `exit_without_finalizing`.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

CLOSE_S = 10.0  # for running jobs, when an error ends the process
EXIT_S = 5.0  # for all threads together, when the process ends

_P = ParamSpec("_P")
_T = TypeVar("_T")


def usable_cpus() -> int:
    """How many CPUs this process may use: under Slurm, for example, not all of the machine's."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def exit_within(seconds: float, code: int) -> None:
    """End the process after this time if it still runs; call it when the main thread ends.

    A thread that is not ours, such as one of a user's module, may be stuck.
    """

    def end() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=end, name="celu-exit", daemon=True).start()


def exit_without_finalizing(code: int) -> None:
    """Let the process exit with this code at the end of its exit handlers.

    Call it when the main thread ends. gRPC leaves daemon threads behind that are in C++ code.
    """
    _exit_codes.append(code)


_exit_codes: list[int] = []


# Handlers run in reverse order: those of modules imported later come first.
@atexit.register
def _exit() -> None:
    if _exit_codes:
        for stream in (sys.stdout, sys.stderr):
            # Nobody reads it any more, it is closed, or the process was started without one.
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(_exit_codes[-1])


class DaemonThreads(Executor):
    """Runs jobs on up to `max_threads` daemon threads, which start on demand.

    A `with` block waits for all jobs, or after an error at most CLOSE_S.
    """

    def __init__(
        self, max_threads: int, name: str, initializer: Callable[[], None] = lambda: None
    ) -> None:
        self._max_threads = max_threads
        self._name = name
        self._initializer = initializer
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._num_idle = threading.Semaphore(0)
        self._lock = threading.Lock()  # guards the two below
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        # The threads do not refer to the pool, and end with it.
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See `Executor`."""
        job = _Job(lambda: fn(*args, **kwargs))
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the threads were stopped")
            self._jobs.put(job)
            if not self._num_idle.acquire(blocking=False):
                self._start_thread()
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`."""
        self._stop(cancel_futures)
        if wait:
            for thread in self._threads:
                thread.join()

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Cancel waiting jobs, and wait for running ones; returns whether all have ended."""
        self._stop(cancel=True)
        give_up_at = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.close()

    def _start_thread(self) -> None:
        if len(self._threads) < self._max_threads:
            thread = threading.Thread(
                target=_work,
                args=(self._jobs, self._num_idle, self._initializer),
                name=f"{self._name}-{len(self._threads)}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)
            _started[thread] = self._jobs

    def _stop(self, cancel: bool) -> None:
        with self._lock:
            self._is_closed = True
            while cancel:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is not None:
                    job.future.cancel()
            self._jobs.put(None)


# Every thread that may still run, with the queue that ends it.
_started: weakref.WeakKeyDictionary[threading.Thread, queue.SimpleQueue[_Job | None]] = (
    weakref.WeakKeyDictionary()
)


@atexit.register
def _end_threads() -> None:
    give_up_at = time.monotonic() + EXIT_S
    alive = [(thread, jobs) for thread, jobs in list(_started.items()) if thread.is_alive()]
    for _, jobs in alive:
        jobs.put(None)
    for thread, _ in alive:
        thread.join(max(0.0, give_up_at - time.monotonic()))


class _Job:
    """A call, and the future with its result."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._call = call

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._call()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


def _work(
    jobs: queue.SimpleQueue[_Job | None],
    num_idle: threading.Semaphore,
    initializer: Callable[[], None],
) -> None:
    initializer()
    while True:
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            num_idle.release()
            job = jobs.get()
        if job is None:
            jobs.put(None)  # for the other threads
            return
        job.run()
        del job  # it may hold a large tensor
