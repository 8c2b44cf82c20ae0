"""Idle connections to a dashboard are bounded in number and in time."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest

from celu import http_limits
from celu.dashboard.server import Dashboard
from record.folders import events, write_run

DEADLINE_S = 600.0
NUM_IDLE = 300


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Dashboard]:
    with Dashboard([write_run(tmp_path / "run", events(10))]) as dashboard:
        yield dashboard


def port_of(served: Dashboard) -> int:
    return int(served.url.rsplit(":", 1)[1].strip("/"))


def connect(served: Dashboard) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(served)), DEADLINE_S)


def wait_for_closed(sockets: list[socket.socket], count: int) -> int:
    """Wait until at least this many are closed by the server; returns how many are."""
    still_open, give_up_at = list(sockets), time.monotonic() + DEADLINE_S
    while len(sockets) - len(still_open) < count and time.monotonic() < give_up_at:
        readable, _, _ = select.select(still_open, [], [], 1.0)
        still_open = [sock for sock in still_open if sock not in readable or not is_closed(sock)]
    return len(sockets) - len(still_open)


def is_closed(sock: socket.socket) -> bool:
    try:
        return not sock.recv(65536)
    except ConnectionError:
        return True


def test_idle_connections_are_bounded_in_number(
    served: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_limits, "REQUEST_S", 2 * DEADLINE_S)
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(served)) for _ in range(NUM_IDLE)]
        excess = NUM_IDLE - http_limits.BoundedHttp.max_connections
        assert wait_for_closed(idle, excess) == excess


def test_a_dashboard_answers_again_after_idle_connections_timed_out(
    served: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_limits, "REQUEST_S", 0.5)
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(served)) for _ in range(NUM_IDLE)]
        assert wait_for_closed(idle, NUM_IDLE) == NUM_IDLE
        client = HTTPConnection("127.0.0.1", port_of(served), timeout=DEADLINE_S)
        stack.callback(client.close)
        client.request("GET", "/")
        assert client.getresponse().status == 200


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_request_that_arrives_byte_by_byte_is_cut_off(
    served: Dashboard, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(http_limits, "REQUEST_S", 0.5)
    over = threading.Event()

    def dribble() -> None:
        try:
            client.sendall(first + b"GET / HTTP/1.1\r\nX: ")
            while not over.wait(0.05):
                client.sendall(b"x")
        except OSError:  # it was disconnected
            return

    with connect(served) as client:
        thread = threading.Thread(target=dribble)
        thread.start()
        assert wait_for_closed([client], 1) == 1
        over.set()
        thread.join(DEADLINE_S)


@pytest.mark.parametrize(
    "garbage",
    [
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n\0\0\0\r\n\r\n",
        b"\0\0\0\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_end_their_connection_and_log_nothing(
    served: Dashboard, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    with connect(served) as client:
        client.sendall(garbage)
        assert wait_for_closed([client], 1) == 1
    with connect(served) as client:  # its answer comes after whatever the garbage caused
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert client.recv(16).startswith(b"HTTP/1.1 200")
    assert not caplog.records
