"""Clients that never identify themselves, while two parties train, have no effect."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from celu.transport import grpc_carrier, websocket_carrier
from celu.transport.carrier import Admission
from celu.transport.connect import find_carrier
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials
from federation import assert_same_bits, federation, train_in_memory, train_over_grpc
from transport.transports import TRANSPORTS, Transport

CROWD = 200
NAMES = ["tls", "websocket", "inner-tls", "websocket-inner-tls"]
every_transport = pytest.mark.parametrize(
    "transport", [TRANSPORTS[name] for name in NAMES], ids=NAMES
)
# A TLS record that announces a ClientHello of 508 bytes, and its first bytes.
HELLO = bytes.fromhex("16030101fc010001f80303") + bytes(100)
OPENINGS = [
    b"",  # nothing
    HELLO,
    b"PRI * HTTP/2.0\r\n\r\n",  # half of an HTTP/2 preface
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  # all of it, without settings
    b"GET /celu HTTP/1.1\r\nHost: celu\r\n",  # an incomplete request
    os.urandom(300),
]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Crowd:
    """Many connections to a port that send one byte at a time and complete no handshake."""

    def __init__(self, port: int, size: int = CROWD) -> None:
        self._over = threading.Event()
        self.sockets = [socket.create_connection(("127.0.0.1", port), 600) for _ in range(size)]
        self._thread = threading.Thread(target=self._dribble, daemon=True)
        self._thread.start()

    def _dribble(self) -> None:
        for at in range(max(map(len, OPENINGS))):
            for number, sock in enumerate(self.sockets):
                byte = OPENINGS[number % len(OPENINGS)][at : at + 1]
                try:
                    if byte:
                        sock.send(byte)
                except OSError:  # it was disconnected
                    continue
            if self._over.wait(0.01):
                return

    def num_open_after(self, seconds: float) -> int:
        """How many are still open after a number of seconds; returns early when none is."""
        still_open, give_up = list(self.sockets), time.monotonic() + seconds
        while still_open and time.monotonic() < give_up:
            still_open = [sock for sock in still_open if not _is_closed(sock)]
            time.sleep(0.05)
        return len(still_open)

    def close(self) -> None:
        self._over.set()
        self._thread.join(600)
        for sock in self.sockets:
            sock.close()


def _is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            continue
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


@every_transport
def test_two_parties_train_to_the_same_bits_among_200_unknown_clients(
    tmp_path: Path, transport: Transport
) -> None:
    fed = federation(rounds=40)
    in_memory = train_in_memory(fed)
    crowds: list[Crowd] = []
    threads: list[int] = []

    def route(address: str) -> Any:
        crowds.append(Crowd(int(address.rsplit(":", 1)[1])))  # they connect before the host does
        return transport.route(address)

    def check(result: Any) -> None:
        threads.append(threading.active_count())
        assert result.rounds == 40

    before = threading.active_count()
    more = {"carrier": transport.carrier, "behind_gateway": transport.inner_tls}
    try:
        trained = train_over_grpc(fed, tmp_path, route=route, result=check, **more)
    finally:
        for crowd in crowds:
            crowd.close()
    assert_same_bits(in_memory, trained)
    assert threads[0] - before < 20, "an unknown client costs no thread"


@contextmanager
def listening(companies: dict[str, Any], transport: Transport) -> Iterator[int]:
    guest, bank = companies["guest"], companies["bank"]
    credentials = Credentials.read(*guest.keys(bank))
    admission = Admission(
        {"bank": StreamLink("bank", deadline_s=600)},
        credentials,
        behind_gateway=transport.inner_tls,
    )
    listener = find_carrier(transport.carrier).listen("127.0.0.1:0", admission)
    try:
        yield listener.port
    finally:
        listener.stop()


@every_transport
def test_unknown_clients_are_disconnected_after_a_timeout(
    companies: dict[str, Any], transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_s = 0.5
    quick = [(name, int(short_s * 1000)) for name, _ in grpc_carrier._SERVER_TIMEOUTS]
    monkeypatch.setattr(grpc_carrier, "_SERVER_TIMEOUTS", quick)
    monkeypatch.setitem(websocket_carrier._LIMITS, "open_timeout", short_s)
    with listening(companies, transport) as port:
        before = descriptors()
        crowd = Crowd(port, size=60)
        try:
            assert crowd.num_open_after(600) == 0
            # Our ends are still open; the listener's ends are not.
            assert descriptors() - before < 60 + 20
        finally:
            crowd.close()
