"""Asks over a link: what a guest and a host may rely on, whatever the other side does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from celu.errors import (
    AskExpired,
    AskRefused,
    CeluError,
    NonFiniteError,
    PeerLost,
    ProtocolError,
    ShapeError,
)
from celu.transport.ask import MAX_ASK_S, Ask, Refusal, ask_spec, serve_asks
from celu.transport.asker import MAX_IN_FLIGHT, Asker
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.stream import StreamLink
from transport.conftest import Federate

pytestmark = pytest.mark.parametrize("federate", [("insecure", 1)], indirect=True, ids=["insecure"])

WAIT_S = 600.0
MAX_ROWS, WIDTH = 8, 3
SPEC = TensorSpec(MAX_ROWS, WIDTH)


def z_of(rows: Any, slot: int = 0) -> torch.Tensor:
    return torch.tensor([[1000.0 * slot + row] * WIDTH for row in rows], dtype=torch.float32)


class Host:
    """Answers asks; each waits for a permit, and those for a row of `unknown` are refused."""

    def __init__(self, link: StreamLink, permits: int = 10**6) -> None:
        self.asks: list[Ask] = []
        self.errors: list[Exception] = []
        self.ends: list[CeluError] = []
        self.unknown: set[int] = set()
        self.permits = threading.Semaphore(permits)
        serve_asks(
            link,
            self.answer,
            max_rows=MAX_ROWS,
            on_error=self.errors.append,
            on_end=self.ends.append,
        )

    def answer(self, ask: Ask) -> torch.Tensor:
        self.asks.append(ask)
        assert self.permits.acquire(timeout=WAIT_S)
        if self.unknown & set(ask.rows):
            raise AskRefused("not here", reason=Refusal.UNKNOWN_ROW)
        return z_of(ask.rows, ask.slot)


@pytest.fixture
def ends(federate: Federate) -> tuple[StreamLink, StreamLink]:
    """The guest's and the host's end of a link."""
    federation = federate(outage_s=WAIT_S)
    guest, host = federation.guest["airline"], federation.hosts["airline"]
    assert isinstance(guest, StreamLink) and isinstance(host, StreamLink)
    return guest, host


@pytest.fixture
def asker(ends: tuple[StreamLink, StreamLink]) -> Asker:
    return Asker(ends[0], SPEC, max_rows=MAX_ROWS)


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def until(is_true: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < give_up_at
        time.sleep(0.001)


def test_an_answer_has_the_rows_that_were_asked_for(
    ends: tuple[StreamLink, StreamLink], asker: Asker
) -> None:
    host = Host(ends[1])
    for slot, rows in ((0, [5]), (7, [3, 3, 1]), (2, list(range(8)))):
        assert torch.equal(asker.ask(slot, rows, WAIT_S), z_of(rows, slot))
    assert all(0 < ask.deadline - time.monotonic() <= WAIT_S for ask in host.asks)


def test_callers_that_wait_for_asks_in_flight_travel_together(
    ends: tuple[StreamLink, StreamLink], asker: Asker, callers: ThreadPoolExecutor
) -> None:
    host = Host(ends[1], permits=0)
    first = []
    for i in range(MAX_IN_FLIGHT):
        first.append(callers.submit(asker.ask, 0, [i], WAIT_S))
        until(lambda n=i: len(asker._in_flight) == n + 1)  # type: ignore[misc]
    rest = [callers.submit(asker.ask, 0, [10 + i], WAIT_S) for i in range(5)]
    other = callers.submit(asker.ask, 1, [0], WAIT_S)
    until(lambda: len(asker._queue) == 6)
    host.permits.release(100)
    for i, future in enumerate([*first, *rest]):
        row = i if i < MAX_IN_FLIGHT else 10 + i - MAX_IN_FLIGHT
        assert torch.equal(future.result(WAIT_S), z_of([row]))
    assert torch.equal(other.result(WAIT_S), z_of([0], 1)), "another model has its own ask"
    assert sorted(len(ask.rows) for ask in host.asks) == [1, 1, 1, 5]


def test_an_ask_never_has_more_rows_than_the_maximum(
    ends: tuple[StreamLink, StreamLink], asker: Asker, callers: ThreadPoolExecutor
) -> None:
    host = Host(ends[1], permits=0)
    futures = [callers.submit(asker.ask, 0, [i] * 5, WAIT_S) for i in range(8)]
    until(lambda: len(asker._queue) == 8 - MAX_IN_FLIGHT)
    host.permits.release(100)
    for i, future in enumerate(futures):
        assert torch.equal(future.result(WAIT_S), z_of([i] * 5))
    assert {len(ask.rows) for ask in host.asks} == {5}


def test_a_refused_row_fails_its_own_caller_only(
    ends: tuple[StreamLink, StreamLink], asker: Asker, callers: ThreadPoolExecutor
) -> None:
    host = Host(ends[1], permits=0)
    host.unknown = {11}
    futures = [callers.submit(asker.ask, 0, [i], WAIT_S) for i in (0, 1, 10, 11, 12)]
    until(lambda: len(asker._queue) == len(futures) - MAX_IN_FLIGHT)
    host.permits.release(100)
    for row, future in zip((0, 1, 10, 11, 12), futures, strict=True):
        if row == 11:
            with pytest.raises(AskRefused, match="airline refused the ask: unknown-row") as got:
                future.result(WAIT_S)
            assert got.value.reason == Refusal.UNKNOWN_ROW
        else:
            assert torch.equal(future.result(WAIT_S), z_of([row]))


def test_an_error_of_the_host_fails_the_ask_and_says_nothing_of_it(
    ends: tuple[StreamLink, StreamLink], asker: Asker
) -> None:
    bad = {1: RuntimeError("secret"), 2: torch.full((1, WIDTH), float("nan")), 3: torch.ones(3)}

    def answer(ask: Ask) -> torch.Tensor:
        made = bad.get(int(ask.rows[0]), z_of(ask.rows))
        if isinstance(made, Exception):
            raise made
        return made

    errors: list[Exception] = []
    serve_asks(
        ends[1], answer, max_rows=MAX_ROWS, on_error=errors.append, on_end=lambda problem: None
    )
    for row in bad:
        with pytest.raises(AskRefused) as got:
            asker.ask(0, [row], WAIT_S)
        assert str(got.value) == "airline refused the ask: failed"
    assert [type(error) for error in errors] == [RuntimeError, NonFiniteError, ShapeError]
    assert torch.equal(asker.ask(0, [4], WAIT_S), z_of([4])), "the link still works"


def test_an_ask_ends_at_its_deadline_and_its_late_answer_is_discarded(
    ends: tuple[StreamLink, StreamLink], asker: Asker
) -> None:
    host = Host(ends[1], permits=0)
    for _ in range(MAX_IN_FLIGHT + 1):  # the last one never leaves
        with pytest.raises(AskExpired, match=r"airline did not answer within 0\.05 s"):
            asker.ask(0, [1], 0.05)
    assert not asker._queue
    host.permits.release(100)
    assert torch.equal(asker.ask(0, [2], WAIT_S), z_of([2]))
    assert [ask.rows for ask in host.asks] == [[1]] * MAX_IN_FLIGHT + [[2]]
    assert ends[0].traffic.received.messages == MAX_IN_FLIGHT + 1, "each ask has one reply"


def test_an_ask_in_flight_is_answered_after_the_link_reconnects(
    ends: tuple[StreamLink, StreamLink], asker: Asker, callers: ThreadPoolExecutor
) -> None:
    host = Host(ends[1], permits=0)
    waiting = callers.submit(asker.ask, 0, [1], WAIT_S)
    until(lambda: len(host.asks) == 1)
    for end in ends:
        assert end._connections.current is not None
        end._connections.current.abort(PeerLost("aborted by the test"))
    host.permits.release(100)
    assert torch.equal(waiting.result(WAIT_S), z_of([1]))
    assert torch.equal(asker.ask(0, [2], WAIT_S), z_of([2]))
    assert [ask.rows for ask in host.asks] == [[1], [2]], "each ask is served once"


@pytest.mark.parametrize("how", ["close", "goodbye"])
def test_all_asks_fail_at_once_when_the_host_leaves(
    ends: tuple[StreamLink, StreamLink], asker: Asker, callers: ThreadPoolExecutor, how: str
) -> None:
    ends[1].allow({Kind.ASK: ask_spec(MAX_ROWS)})
    futures = [callers.submit(asker.ask, 0, [i], WAIT_S) for i in range(MAX_IN_FLIGHT + 3)]
    until(lambda: len(asker._queue) == 3)
    if how == "close":
        callers.submit(ends[0].close)
    else:
        run_blocking(ends[1].send(Message(Kind.GOODBYE)))
    for future in futures:
        with pytest.raises(PeerLost) as lost:
            future.result(WAIT_S)
        assert not isinstance(lost.value, AskExpired)
    with pytest.raises(PeerLost):
        asker.ask(0, [0], WAIT_S)


def hostile_answer(link: StreamLink, message: Message) -> None:
    with link._waits.lock:  # without the checks of an honest sender
        link._enqueue(message)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message(Kind.ANSWER, 1, tensor=torch.ones(1, WIDTH)), ProtocolError),
        (Message(Kind.ANSWER, 2**64 - 1, tensor=torch.ones(1, WIDTH)), ProtocolError),
        (Message(Kind.ANSWER, 0, tensor=torch.ones(2, WIDTH)), ShapeError),
        (Message(Kind.ANSWER, 0, tensor=torch.ones(1, WIDTH + 1)), ShapeError),
        (Message(Kind.ANSWER, 0, tensor=torch.ones(1, WIDTH, dtype=torch.int64)), ShapeError),
        (Message(Kind.ANSWER, 0, tensor=torch.tensor([[1.0, np.nan, 2.0]])), NonFiniteError),
        (Message(Kind.ANSWER, 0, tensor=torch.tensor([[1.0, np.inf, 2.0]])), NonFiniteError),
        (Message(Kind.REFUSAL, 1, body={"reason": "failed"}), ProtocolError),
        (Message(Kind.REFUSAL, 0, body={"reason": "\x1b[2J"}), ProtocolError),
        (Message(Kind.REFUSAL, 0, body={"reason": ["failed"]}), ProtocolError),
        (Message(Kind.REFUSAL, 0, body={}), ProtocolError),
        (Message(Kind.ASK, 0, tensor=torch.ones(3, 1, dtype=torch.int64)), ProtocolError),
        (Message(Kind.READY), ProtocolError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or getattr(value.kind, "name", ""),
)
def test_a_hostile_answer_ends_the_link_with_an_error(
    ends: tuple[StreamLink, StreamLink],
    asker: Asker,
    callers: ThreadPoolExecutor,
    message: Message,
    error: type[CeluError],
) -> None:
    ends[1].allow({Kind.ASK: ask_spec(MAX_ROWS)})
    waiting = callers.submit(asker.ask, 0, [1], WAIT_S)
    assert run_blocking(ends[1].receive()).round == 0
    hostile_answer(ends[1], message)
    with pytest.raises(error) as got:
        waiting.result(WAIT_S)
    assert type(got.value) is error
    with pytest.raises(error):
        asker.ask(0, [1], WAIT_S)


def ask_of(*values: int) -> Message:
    return Message(Kind.ASK, 0, tensor=torch.tensor(values, dtype=torch.int64).reshape(-1, 1))


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (ask_of(0, 1), ProtocolError),
        (ask_of(0), ProtocolError),
        (ask_of(-1, 1, 0), ProtocolError),
        (ask_of(2**16, 1, 0), ProtocolError),
        (ask_of(0, 0, 0), ProtocolError),
        (ask_of(0, -(2**63), 0), ProtocolError),
        (ask_of(0, int(MAX_ASK_S * 1e6) + 1, 0), ProtocolError),
        (ask_of(0, 1, -1), ProtocolError),
        (ask_of(0, 1, 2**48), ProtocolError),
        (ask_of(0, 1, *range(MAX_ROWS + 1)), ShapeError),
        (Message(Kind.ASK, 0, tensor=torch.ones(3, 1)), ShapeError),
        (Message(Kind.ANSWER, 0, tensor=torch.ones(1, 1)), ProtocolError),
        (Message(Kind.VERDICT), ProtocolError),
    ],
    ids=lambda value: getattr(value, "__name__", "message"),
)
def test_a_hostile_ask_ends_the_link_with_an_error_and_is_not_answered(
    ends: tuple[StreamLink, StreamLink], message: Message, error: type[CeluError]
) -> None:
    host = Host(ends[1])
    hostile_answer(ends[0], message)
    until(lambda: bool(host.ends))
    assert type(host.ends[0]) is error and "from guest: " in str(host.ends[0])
    assert not host.asks


@pytest.mark.parametrize(
    ("slot", "rows", "deadline_s"),
    [
        (-1, [0], 1.0),
        (2**16, [0], 1.0),
        (0, [], 1.0),
        (0, range(MAX_ROWS + 1), 1.0),
        (0, [-1], 1.0),
        (0, [2**48], 1.0),
        (0, [0], 0.0),
        (0, [0], MAX_ASK_S + 1),
    ],
    ids=str,
)
def test_an_ask_out_of_range_is_refused_before_it_is_sent(
    ends: tuple[StreamLink, StreamLink], asker: Asker, slot: int, rows: Any, deadline_s: float
) -> None:
    with pytest.raises(ShapeError):
        asker.ask(slot, rows, deadline_s)
    assert ends[0].traffic.sent.messages == 0


def test_an_announcement_that_came_early_is_not_lost(
    ends: tuple[StreamLink, StreamLink],
) -> None:
    ends[1].post(Message(Kind.ANNOUNCE, body={"models": ["a"]}))
    until(lambda: bool(ends[0]._incoming))
    seen: Future[Message] = Future()
    Asker(ends[0], SPEC, max_rows=MAX_ROWS, on_announce=seen.set_result)
    assert seen.result(WAIT_S).body == {"models": ["a"]}
