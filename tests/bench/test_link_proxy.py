"""The emulated link delivers every byte, not too early, and has backpressure when it is full."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.link_proxy import LinkProxy
from celu.config.link import LinkSettings

LINK = LinkSettings(mbps=400.0, delay_ms=20.0)


@contextmanager
def joined(link: LinkSettings = LINK) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets connected by a link."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        LinkProxy(server.getsockname()[1], link) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=600) as near,
    ):
        far, _ = server.accept()
        with far:
            far.settimeout(600)
            yield near, far


def read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = source.recv(1 << 16)
        assert part, "the connection ended early"
        data += part
    return data


def test_bytes_and_the_end_of_a_stream_arrive_in_both_directions() -> None:
    there, back = os.urandom(3_000_000), os.urandom(1_000_000)
    with joined() as (near, far):
        sending = [
            threading.Thread(target=one.sendall, args=(data,))
            for one, data in ((near, there), (far, back))
        ]
        for thread in sending:
            thread.start()
        assert read(near, len(back)) == back
        assert read(far, len(there)) == there
        for thread in sending:
            thread.join(600)
        near.shutdown(socket.SHUT_WR)
        assert far.recv(1) == b""
        far.sendall(b"after")
        assert read(near, 5) == b"after"


def test_nothing_arrives_before_the_link_can_deliver_it() -> None:
    with joined() as (near, far):
        began = time.monotonic()
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        far.sendall(b"y")
        assert near.recv(1) == b"y"
        assert time.monotonic() - began >= 2 * LINK.delay_ms / 1000
        began = time.monotonic()
        threading.Thread(target=near.sendall, args=(bytes(1_000_000),), daemon=True).start()
        read(far, 1_000_000)
        assert time.monotonic() - began >= 1_000_000 * 8 / (LINK.mbps * 1e6)


def test_a_receiver_that_does_not_read_blocks_the_sender() -> None:
    with joined() as (near, _):
        near.settimeout(0.5)
        sent = 0
        try:
            while sent < 200_000_000:
                sent += near.send(bytes(1 << 20))
        except TimeoutError:
            pass
        assert sent < 64_000_000
