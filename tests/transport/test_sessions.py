"""Sessions follow each other on one link after another, whatever ends them."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from celu.errors import CeluError, ConfigError, PeerLost, ProtocolError
from celu.testing import free_port
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message
from celu.transport.sessions import Sessions
from celu.transport.stream import StreamLink

WAIT_S = 600.0
Seen = queue.Queue


def endpoints(carrier: str) -> tuple[Endpoint, Endpoint]:
    port = free_port()
    guest = Endpoint("guest", f"127.0.0.1:{port}", ("host",), carrier=carrier)
    host = Endpoint("host", connect={"guest": Route(f"127.0.0.1:{port}")}, carrier=carrier)
    return guest, host


def greet(link: StreamLink, number: int) -> int:
    """Exchange a number with the peer, and return its."""
    run_blocking(link.send(Message(Kind.READY, body={"number": number})))
    body = run_blocking(link.receive()).body or {}
    return int(body["number"])


def sessions(
    endpoint: Endpoint, session: Callable[[StreamLink], None], errors: Seen[CeluError]
) -> Sessions:
    return Sessions(endpoint, session, lambda peer, error: errors.put(error))


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_a_session_that_ends_is_followed_by_another(carrier: str) -> None:
    guest, host = endpoints(carrier)
    seen: Seen[int] = queue.Queue()
    errors: Seen[CeluError] = queue.Queue()
    count = iter(range(10**6))

    def guest_session(link: StreamLink) -> None:
        seen.put(greet(link, 0))
        raise PeerLost("over")

    def host_session(link: StreamLink) -> None:
        greet(link, next(count))
        run_blocking(link.receive())  # until the guest ends it

    with sessions(guest, guest_session, errors), sessions(host, host_session, queue.Queue()):
        numbers = [seen.get(timeout=WAIT_S) for _ in range(3)]
    assert numbers == sorted(numbers) and len(set(numbers)) == 3
    assert str(errors.get(timeout=WAIT_S)) == "over"


def test_a_peer_that_comes_back_gets_a_new_session() -> None:
    guest, host = endpoints("grpc")
    seen: Seen[int] = queue.Queue()

    def guest_session(link: StreamLink) -> None:
        seen.put(greet(link, 0))
        run_blocking(link.receive())

    with sessions(guest, guest_session, queue.Queue()):
        for number in (1, 2, 3):

            def host_session(link: StreamLink, number: int = number) -> None:
                greet(link, number)
                run_blocking(link.receive())

            with sessions(host, host_session, queue.Queue()):
                assert seen.get(timeout=WAIT_S) == number


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_a_session_that_waits_for_a_message_ends_with_its_context(carrier: str) -> None:
    guest, host = endpoints(carrier)
    waiting: Seen[str] = queue.Queue()

    def wait(link: StreamLink) -> None:
        greet(link, 0)
        waiting.put(link.peer)
        run_blocking(link.receive())

    ours = sessions(guest, wait, queue.Queue())
    theirs = sessions(host, wait, queue.Queue())
    with ours, theirs:
        assert {waiting.get(timeout=WAIT_S) for _ in range(2)} == {"guest", "host"}
    assert not any(thread.is_alive() for thread in (*ours._threads, *theirs._threads))


def test_a_bug_or_a_violation_in_a_session_ends_only_that_session() -> None:
    guest, host = endpoints("grpc")
    seen: Seen[int] = queue.Queue()
    errors: Seen[CeluError] = queue.Queue()
    problems = iter([ProtocolError("bad"), ZeroDivisionError("bug")])

    def guest_session(link: StreamLink) -> None:
        number = greet(link, 0)
        problem = next(problems, None)
        if problem is not None:
            raise problem
        seen.put(number)
        run_blocking(link.receive())

    def host_session(link: StreamLink) -> None:
        greet(link, 7)
        run_blocking(link.receive())

    with sessions(guest, guest_session, errors), sessions(host, host_session, queue.Queue()):
        assert seen.get(timeout=WAIT_S) == 7
    assert [str(errors.get(timeout=WAIT_S)) for _ in range(2)] == [
        "bad",
        "unexpected ZeroDivisionError: bug",
    ]


def test_an_address_that_is_taken_is_a_config_error() -> None:
    guest, _ = endpoints("grpc")
    idle = sessions(guest, lambda link: None, queue.Queue())
    with (
        idle,
        pytest.raises(ConfigError, match="free port"),
        sessions(guest, lambda link: None, queue.Queue()),
    ):
        pass
