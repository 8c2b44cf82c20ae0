"""Several streams as one link: order by turns, and what does not fit is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celu.errors import PeerLost
from celu.transport import stream, stripes
from celu.transport.carrier import Admission
from celu.transport.grpc_carrier import Listener, grpc  # which must not be imported first
from celu.transport.stream import StreamLink
from celu.transport.stripes import MAX_STRIPES, Deal, gather, piece_bytes
from celu.transport.wire import PIECE_BYTES

TOKEN = "0123456789abcdef" * 2


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("pieces", [0, 1, 6, 7, 50])
def test_pieces_are_gathered_in_the_order_in_which_they_were_dealt(count: int, pieces: int) -> None:
    sent = [str(i).encode() for i in range(pieces)]
    deal = Deal(iter(sent), count)
    with ThreadPoolExecutor(count) as pool:
        streams = list(pool.map(lambda i: list(deal.stripe(i)), range(count)))
    assert [len(one) for one in streams] == [len(sent[i::count]) for i in range(count)]
    assert list(gather([iter(one) for one in streams])) == sent


def test_a_stream_that_is_dropped_lets_the_others_end() -> None:
    deal = Deal(iter([b"a", b"b", b"c"]), 3)
    waiting = threading.Thread(target=lambda: list(deal.stripe(2)))
    waiting.start()
    dropped = deal.stripe(0)
    assert next(dropped) == b"a"
    dropped.close()  # type: ignore[attr-defined]
    waiting.join(10)
    assert not waiting.is_alive()
    assert list(deal.stripe(1)) == []


def test_one_stream_carries_large_pieces_and_several_small_ones() -> None:
    assert piece_bytes(1) == PIECE_BYTES
    assert 2 * piece_bytes(2) < 65535, "two fit into a window of HTTP/2"


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setattr(stream, "CLOSE_S", 0.5)
    arrivals = Admission({"bank": StreamLink("bank", deadline_s=10)}, None)
    made = Listener("127.0.0.1:0", arrivals)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def call(listener: Listener) -> Iterator[Any]:
    """Opens a stream that says something of itself and sends nothing."""
    over = threading.Event()
    kept: list[Any] = []

    def nothing() -> Iterator[bytes]:
        over.wait(10)
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
        exchange = channel.stream_stream("/celu.Link/Exchange")

        def open_stream(**said: str) -> Any:
            metadata = [(f"celu-{key}", value) for key, value in {"name": "bank", **said}.items()]
            kept.append(exchange(nothing(), metadata=metadata))  # one that is dropped is cancelled
            return kept[-1]

        yield open_stream
        over.set()


def refusal(of: Any) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        next(of)
    assert refused.value.code() == grpc.StatusCode.ABORTED
    return str(refused.value.details())


@pytest.mark.parametrize(
    "said",
    ["0/0", "1/1", "5/4", f"0/{MAX_STRIPES + 1}", "0/99999", "-1/2", "1", "", "a/b", "1/2/3"],
)
def test_a_stripe_that_makes_no_sense_is_refused_with_a_reason(
    listener: Listener, call: Any, said: str
) -> None:
    assert "expected a stripe I/N" in refusal(call(stripe=said, token=TOKEN))
    assert "expected a stripe I/N" in listener.refused[-1]
    with pytest.raises(PeerLost):
        listener.wait(0)


@pytest.mark.parametrize("token", ["", "abc", TOKEN.upper(), TOKEN + "0"])
def test_a_token_that_is_none_is_refused(call: Any, token: str) -> None:
    assert "expected a token" in refusal(call(stripe="0/2", token=token))


@pytest.mark.parametrize("again", ["0/3", "1/2"], ids=["the same", "another count"])
def test_a_stripe_that_came_before_or_counts_otherwise_is_refused(
    listener: Listener, call: Any, again: str
) -> None:
    call(stripe="0/3", token=TOKEN)
    call(stripe="1/3", token=TOKEN[::-1])  # another attempt, which this one is not mixed with
    _until_waiting(listener, 2)
    assert "expected each of 3 stripes once" in refusal(call(stripe=again, token=TOKEN))
    with pytest.raises(PeerLost):
        listener.wait(0)


def test_stripes_that_stay_alone_are_refused_after_a_while(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripes, "COMPLETE_S", 0.05)
    assert "expected all 3 stripes within 0.05 s, got 1" in refusal(call(stripe="2/3", token=TOKEN))


def test_attempts_of_which_stripes_are_missing_are_few_at_a_time(
    listener: Listener, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripes, "_INCOMPLETE", 2)
    for digit in "12":
        call(stripe="0/2", token=digit * 32)
    _until_waiting(listener, 2)
    assert "too many" in refusal(call(stripe="0/2", token="3" * 32))


def test_stripes_come_in_any_order(listener: Listener, call: Any) -> None:
    for index in (2, 0, 1):
        call(stripe=f"{index}/3", token=TOKEN)
    link = listener.arrivals._links["bank"]
    done = threading.Event()
    for _ in range(1000):
        if link._connections:
            return
        done.wait(0.01)
    raise AssertionError("they were not put together")


def _until_waiting(listener: Listener, number: int) -> None:
    """Until so many attempts are known to wait for their other stripes."""
    done = threading.Event()
    for _ in range(1000):
        if len(listener._bundles._incomplete) == number:
            return
        done.wait(0.01)
    raise AssertionError("they did not come")
