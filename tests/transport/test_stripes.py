"""Several streams as one connection: pieces stay in order; invalid stripes are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from celu.config.party import MAX_DIRECT_STRIPES
from celu.errors import PeerLost
from celu.transport import stream, stripes
from celu.transport.carrier import Admission
from celu.transport.connection import Connection
from celu.transport.grpc_carrier import Listener, grpc  # gRPC's, configured by our module
from celu.transport.stream import StreamLink
from celu.transport.stripes import (
    RoundRobin,
    StreamCount,
    Stripe,
    StripeGroups,
    gather,
    piece_bytes,
)
from celu.transport.wire import PIECE_BYTES

TOKEN = "0123456789abcdef" * 2
RETRY = grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("pieces", [0, 1, 6, 7, 50])
def test_pieces_are_gathered_in_their_original_order(count: int, pieces: int) -> None:
    sent = [str(i).encode() for i in range(pieces)]
    outgoing = RoundRobin(iter(sent), count)
    with ThreadPoolExecutor(count) as pool:
        streams = list(pool.map(lambda i: list(outgoing.pieces_for(i)), range(count)))
    assert [len(one) for one in streams] == [len(sent[i::count]) for i in range(count)]
    assert list(gather([iter(one) for one in streams])) == sent


def test_dropping_one_stream_ends_the_others() -> None:
    outgoing = RoundRobin(iter([b"a", b"b", b"c"]), 3)
    waiting = threading.Thread(target=lambda: list(outgoing.pieces_for(2)))
    waiting.start()
    dropped = outgoing.pieces_for(0)
    assert next(dropped) == b"a"
    dropped.close()  # type: ignore[attr-defined]
    waiting.join(600)
    assert not waiting.is_alive()
    assert list(outgoing.pieces_for(1)) == []


def test_one_stream_carries_large_pieces_and_several_small_ones() -> None:
    assert piece_bytes(1) == PIECE_BYTES
    assert 2 * piece_bytes(2) < 65535, "two fit into an HTTP/2 window"


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setattr(stream, "CLOSE_S", 0.5)
    admission = Admission({"bank": StreamLink("bank", deadline_s=600)}, None)
    made = Listener("127.0.0.1:0", admission)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def call(listener: Listener) -> Iterator[Any]:
    """Opens a stream with some metadata that sends nothing."""
    done = threading.Event()
    calls: list[Any] = []

    def nothing() -> Iterator[bytes]:
        done.wait(600)
        yield from ()

    with ExitStack() as stack:

        def open_stream(**metadata: str) -> Any:
            # Its own connection: one has no more streams than a link.
            own = [("grpc.use_local_subchannel_pool", 1)]
            channel = grpc.insecure_channel(f"127.0.0.1:{listener.port}", options=own)
            exchange = stack.enter_context(channel).stream_stream("/celu.Link/Exchange")
            pairs = [(f"celu-{key}", value) for key, value in {"name": "bank", **metadata}.items()]
            # Referenced here, because gRPC cancels a call without references.
            calls.append(exchange(nothing(), metadata=pairs))
            return calls[-1]

        yield open_stream
        done.set()


def rejection(stream: Any, code: Any = grpc.StatusCode.ABORTED) -> str:
    with pytest.raises(grpc.RpcError) as rejected:
        next(stream)
    assert rejected.value.code() == code
    return str(rejected.value.details())


@pytest.mark.parametrize(
    "stripe",
    [
        "0/0",
        "1/1",
        "5/4",
        f"0/{MAX_DIRECT_STRIPES + 1}",
        "0/99999",
        "-1/2",
        "1",
        "",
        "a/b",
        "1/2/3",
    ],
)
def test_an_invalid_stripe_is_refused_with_a_reason(
    listener: Listener, call: Any, stripe: str
) -> None:
    assert "expected a stripe I/N" in rejection(call(stripe=stripe, token=TOKEN))
    assert "expected a stripe I/N" in listener.rejections[-1]
    with pytest.raises(PeerLost):
        listener.wait(0)


def test_a_listener_that_has_stopped_leaves_no_thread(listener: Listener, call: Any) -> None:
    earlier = set(threading.enumerate())
    rejection(call(stripe="1/1", token=TOKEN))
    threads = set(threading.enumerate()) - earlier
    assert any(thread.name.startswith("celu-listen") for thread in threads)
    listener.stop()
    for thread in threads:
        if thread.name.startswith("celu-listen"):
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize("token", ["", "abc", TOKEN.upper(), TOKEN + "0"])
def test_an_invalid_token_is_refused(call: Any, token: str) -> None:
    assert "expected a token" in rejection(call(stripe="0/2", token=token))


@pytest.mark.parametrize("again", ["0/3", "1/2"], ids=["same index", "other count"])
def test_a_repeated_stripe_or_one_with_another_count_is_refused(
    listener: Listener, call: Any, again: str
) -> None:
    call(stripe="0/3", token=TOKEN)
    call(stripe="1/3", token=TOKEN[::-1])  # another attempt to connect, in its own group
    _until_waiting(listener, 2)
    assert "expected each of 3 stripes once" in rejection(call(stripe=again, token=TOKEN))
    with pytest.raises(PeerLost):
        listener.wait(0)


def test_stripes_without_the_others_are_refused_after_a_while(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripes, "COMPLETE_S", 0.05)
    assert "expected all 3 stripes within 0.05 s, got 1" in rejection(
        call(stripe="2/3", token=TOKEN)
    )


def test_the_number_of_incomplete_groups_is_bounded(
    listener: Listener, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripes, "_MAX_INCOMPLETE", 2)
    for digit in "12":
        call(stripe="0/2", token=digit * 32)
    _until_waiting(listener, 2)
    refused = call(stripe="0/2", token="3" * 32)
    assert "too many" in rejection(refused, RETRY), "an honest client may retry"


def test_the_number_of_stripes_that_wait_for_others_is_bounded(
    listener: Listener, call: Any
) -> None:
    for index in range(MAX_DIRECT_STRIPES - 1):
        call(stripe=f"{index}/{MAX_DIRECT_STRIPES}", token=TOKEN)
    call(stripe="0/2", token=TOKEN[::-1])
    _until_waiting(listener, MAX_DIRECT_STRIPES, groups=False)
    assert "stripes that wait" in rejection(call(stripe="0/2", token="3" * 32), RETRY)
    call(stripe="1/2", token=TOKEN[::-1])  # the last of a connection does not wait
    _until_waiting(listener, MAX_DIRECT_STRIPES - 1, groups=False)


def test_stripes_of_one_peer_do_not_keep_another_out() -> None:
    groups = StripeGroups(max_waiting=1)
    never: Any = None
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(groups.add_stream, name, Stripe(0, 2, TOKEN), iter(()), never)
            for name in ("bank", "clinic")
        ]
        while groups._num_waiting("bank") + groups._num_waiting("clinic") < 2:
            assert not any(future.done() for future in waiting)
        with pytest.raises(PeerLost, match="stripes that wait"):
            groups.add_stream("bank", Stripe(0, 2, TOKEN[::-1]), iter(()), never)
        groups.stop(PeerLost("no longer listening"))
        for future in waiting:
            with pytest.raises(PeerLost, match="no longer listening"):
                future.result(600)


def test_a_stripe_that_arrives_after_the_listener_stopped_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stripes, "COMPLETE_S", 1200.0)
    groups = StripeGroups(max_waiting=2)
    groups.stop(PeerLost("no longer listening"))
    never: Any = None
    with pytest.raises(PeerLost, match="no longer listening"):
        groups.add_stream("bank", Stripe(0, 2, TOKEN), iter(()), never)


def test_the_streams_of_a_peer_are_bounded_in_number() -> None:
    streams = StreamCount(max_streams=1)
    too_many = pytest.raises(PeerLost, match="too many streams")
    with streams.added("bank"), streams.added("clinic"), too_many, streams.added("bank"):
        raise AssertionError("a second stream was accepted")
    with streams.added("bank"):
        pass


def test_a_bug_in_connecting_does_not_leave_the_other_stripes_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stripes, "COMPLETE_S", 1200.0)
    groups = StripeGroups(max_waiting=2)

    def fail(streams: list[Iterator[bytes]]) -> Connection:
        raise ZeroDivisionError

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(groups.add_stream, "bank", Stripe(0, 2, TOKEN), iter(()), fail)
        while groups._num_waiting("bank") < 1:
            assert not first.done()
        with pytest.raises(ZeroDivisionError):
            groups.add_stream("bank", Stripe(1, 2, TOKEN), iter(()), fail)
        with pytest.raises(PeerLost, match="could not be opened"):
            first.result(600)


def test_a_client_with_too_many_headers_is_refused(call: Any) -> None:
    assert "at most 100 headers" in rejection(call(**{f"x-{i}": "" for i in range(100)}))


def test_stripes_may_arrive_in_any_order(listener: Listener, call: Any) -> None:
    for index in (2, 0, 1):
        call(stripe=f"{index}/3", token=TOKEN)
    link = listener.admission._links["bank"]
    done = threading.Event()
    for _ in range(1000):
        if link._connections.all:
            return
        done.wait(0.01)
    raise AssertionError("no connection")


def _until_waiting(listener: Listener, number: int, *, groups: bool = True) -> None:
    """Wait until this many groups are incomplete, or this many streams wait."""
    done, waiting = threading.Event(), listener._groups
    for _ in range(1000):
        if (len(waiting._incomplete) if groups else waiting._num_waiting("bank")) == number:
            return
        done.wait(0.01)
    raise AssertionError("the stripes did not arrive")
