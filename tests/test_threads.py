"""Daemon threads run jobs like the executors of the standard library, and are left if stuck."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import CancelledError

import pytest

from celu.threads import DaemonThreads

WAIT_S = 600.0


def test_jobs_return_results_and_raise_errors() -> None:
    with DaemonThreads(2, "test") as pool:
        assert list(pool.map(lambda x: x * x, range(20))) == [x * x for x in range(20)]
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result(WAIT_S)
        assert pool.submit(threading.current_thread).result(WAIT_S).daemon


def test_jobs_of_one_thread_run_in_order_and_use_one_thread() -> None:
    seen: list[int] = []
    started: list[None] = []
    pool = DaemonThreads(1, "test", lambda: started.append(None))
    for number in range(50):
        pool.submit(seen.append, number)
    pool.shutdown()
    assert seen == list(range(50)) and len(started) == 1
    with pytest.raises(RuntimeError):
        pool.submit(seen.append, 50)


def test_as_many_jobs_as_threads_run_at_the_same_time() -> None:
    together = threading.Barrier(3)
    with DaemonThreads(3, "test") as pool:
        jobs = [pool.submit(together.wait, WAIT_S) for _ in range(3)]
        assert sorted(job.result(WAIT_S) for job in jobs) == [0, 1, 2]


def test_closing_cancels_waiting_jobs_and_leaves_a_stuck_one() -> None:
    stuck, release = threading.Event(), threading.Event()
    pool = DaemonThreads(1, "test")

    def hang() -> None:
        stuck.set()
        release.wait(WAIT_S)

    running, waiting = pool.submit(hang), pool.submit(hang)
    assert stuck.wait(WAIT_S)
    assert not pool.close(timeout_s=0.01)
    with pytest.raises(CancelledError):
        waiting.result(WAIT_S)
    release.set()
    running.result(WAIT_S)
    assert pool.close(WAIT_S)


def test_threads_end_with_their_pool() -> None:
    pool = DaemonThreads(2, "test")
    thread = pool.submit(threading.current_thread).result(WAIT_S)
    del pool
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()
