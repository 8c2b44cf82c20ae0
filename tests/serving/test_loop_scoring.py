"""Small requests are scored on the event loop, those that wait together; others on threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from celu.serving.batching import Batcher, Job, Outcome
from celu.serving.inference_protocol import Answer, InferRequest
from celu.serving.loop_scoring import MAX_ROWS_HERE, SLOW_S, LoopScoring
from celu.transport.asker import MAX_IN_FLIGHT, Call

WAIT_S = 600.0
HERE, THREAD = Answer("here", [0.0], [[]]), Answer("thread", [0.0], [[]])


@dataclass
class Started:
    """Jobs that wait for one call."""

    jobs: list[Job]
    deadline_at: float
    calls: list[Call]
    is_refused: bool = False

    def asks_again(self) -> bool:
        return self.is_refused

    def outcomes(self) -> list[Outcome]:
        return [HERE for _ in self.jobs]


@dataclass
class Scene:
    """A scoring whose hosts are asked only with `is_asking`, and what it began."""

    is_asking: bool = False
    deadline_s: float = WAIT_S
    work_s: float = 0.0
    now: float = 0.0
    begun: list[Started] = field(default_factory=list)

    def begin(self, jobs: list[Job]) -> Started:
        if jobs[0].request.ids == ["bad"]:
            raise ZeroDivisionError
        self.now += self.work_s
        calls = [Call(0, [0], WAIT_S)] if self.is_asking else []
        self.begun.append(Started(jobs, self.now + self.deadline_s, calls))
        return self.begun[-1]

    def run(self, test: Callable[[LoopScoring], Coroutine[Any, Any, None]]) -> None:
        with Batcher(lambda jobs: [THREAD] * len(jobs), max_rows=1000, max_jobs=100) as threads:
            asyncio.run(test(LoopScoring(self.begin, threads, lambda: self.now)))


def submit(scoring: LoopScoring, *ids: str) -> asyncio.Future[Outcome]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()
    thread = threading.get_ident()

    def done(outcome: Outcome) -> None:
        if threading.get_ident() == thread:
            future.set_result(outcome)
        else:
            loop.call_soon_threadsafe(future.set_result, outcome)

    scoring.submit(Job(InferRequest(list(ids)), time.monotonic() + WAIT_S, done))
    return future


def test_a_request_that_needs_no_ask_is_answered_at_once() -> None:
    async def test(scoring: LoopScoring) -> None:
        assert submit(scoring, "a").result() is HERE

    Scene().run(test)


def test_requests_that_arrive_while_hosts_are_asked_travel_together() -> None:
    scene = Scene(is_asking=True)

    async def test(scoring: LoopScoring) -> None:
        first = [submit(scoring, "a") for _ in range(MAX_IN_FLIGHT)]
        later = [submit(scoring, "b"), submit(scoring, "c", "d")]
        assert len(scene.begun) == MAX_IN_FLIGHT
        answering = threading.Thread(target=scene.begun[0].calls[0].finish)
        answering.start()
        assert await first[0] is HERE
        assert [job.num_rows for job in scene.begun[-1].jobs] == [1, 2]
        for begun in scene.begun[1:]:
            begun.calls[0].finish()
        assert [await one for one in (*first, *later)] == [HERE] * 4

    scene.run(test)


def test_a_host_that_does_not_answer_is_awaited_until_the_deadline() -> None:
    scene = Scene(is_asking=True, deadline_s=0.01)

    async def test(scoring: LoopScoring) -> None:
        assert await submit(scoring, "a") is HERE
        scene.begun[0].calls[0].finish()  # its late answer changes nothing
        await asyncio.sleep(0)

    scene.run(test)


def test_large_requests_go_to_threads() -> None:
    async def test(scoring: LoopScoring) -> None:
        assert await submit(scoring, *["a"] * (MAX_ROWS_HERE + 1)) is THREAD
        assert await submit(scoring, *["a"] * MAX_ROWS_HERE) is HERE

    Scene().run(test)


def test_after_slow_work_requests_go_to_threads_for_a_while() -> None:
    scene = Scene(work_s=2 * SLOW_S)

    async def test(scoring: LoopScoring) -> None:
        assert await submit(scoring, "a") is HERE
        assert await submit(scoring, "a") is THREAD
        scene.now += 10.0
        assert await submit(scoring, "a") is HERE

    scene.run(test)


def test_what_waits_for_a_second_ask_goes_to_threads() -> None:
    scene = Scene(is_asking=True)

    async def test(scoring: LoopScoring) -> None:
        waiting = submit(scoring, "a", "b")
        scene.begun[0].is_refused = True
        scene.begun[0].calls[0].finish()
        assert await waiting is THREAD

    scene.run(test)


def test_a_bug_fails_its_requests_and_no_others() -> None:
    async def test(scoring: LoopScoring) -> None:
        assert isinstance(await submit(scoring, "bad"), ZeroDivisionError)
        assert await submit(scoring, "good") is HERE

    Scene().run(test)
