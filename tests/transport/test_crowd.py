"""Callers who never say who they are, while two parties train: they change nothing."""

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
from transport.ways import WAYS, Way

CROWD = 200
NAMES = ["tls", "websocket", "sealed", "websocket-sealed"]
every_way = pytest.mark.parametrize("way", [WAYS[name] for name in NAMES], ids=NAMES)
# A TLS record that announces a client's hello of 508 bytes, and the beginning of that.
HELLO = bytes.fromhex("16030101fc010001f80303") + bytes(100)
WORDS = [
    b"",  # says nothing
    HELLO,
    b"PRI * HTTP/2.0\r\n\r\n",  # half of a preface of HTTP/2
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  # all of it, and no settings
    b"GET /celu HTTP/1.1\r\nHost: celu\r\n",  # a request without an end
    os.urandom(300),
]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Crowd:
    """So many connections to a port, that dribble what they have to say until they are left."""

    def __init__(self, port: int, size: int = CROWD) -> None:
        self._over = threading.Event()
        self.sockets = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(size)]
        self._thread = threading.Thread(target=self._dribble, daemon=True)
        self._thread.start()

    def _dribble(self) -> None:
        for at in range(max(map(len, WORDS))):
            for number, sock in enumerate(self.sockets):
                byte = WORDS[number % len(WORDS)][at : at + 1]
                try:
                    if byte:
                        sock.send(byte)
                except OSError:  # it was shown the door
                    continue
            if self._over.wait(0.01):
                return

    def left_after(self, seconds: float) -> int:
        """How many were not hung up on when so many seconds are over, or as soon as none is."""
        left, give_up = list(self.sockets), time.monotonic() + seconds
        while left and time.monotonic() < give_up:
            left = [sock for sock in left if not _is_closed(sock)]
            time.sleep(0.05)
        return len(left)

    def close(self) -> None:
        self._over.set()
        self._thread.join(10)
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


@every_way
def test_two_parties_train_to_the_same_bits_in_a_crowd_of_strangers(
    tmp_path: Path, way: Way
) -> None:
    fed = federation(rounds=40)
    alone = train_in_memory(fed)
    crowds: list[Crowd] = []
    threads: list[int] = []

    def route(address: str) -> Any:
        crowds.append(Crowd(int(address.rsplit(":", 1)[1])))  # they come before the host does
        return way.route(address)

    def look(result: Any) -> None:
        threads.append(threading.active_count())
        assert result.rounds == 40

    before = threading.active_count()
    more = {"carrier": way.carrier, "behind_gateway": way.sealed}
    try:
        trained = train_over_grpc(fed, tmp_path, route=route, result=look, **more)
    finally:
        for crowd in crowds:
            crowd.close()
    assert_same_bits(alone, trained)
    assert threads[0] - before < 20, "a stranger costs no thread"


@contextmanager
def listening(companies: dict[str, Any], way: Way) -> Iterator[int]:
    guest, bank = companies["guest"], companies["bank"]
    credentials = Credentials.read(*guest.keys(bank))
    arrivals = Admission(
        {"bank": StreamLink("bank", deadline_s=5)}, credentials, behind_gateway=way.sealed
    )
    listener = find_carrier(way.carrier).listen("127.0.0.1:0", arrivals)
    try:
        yield listener.port
    finally:
        listener.stop()


@every_way
def test_strangers_are_shown_the_door_after_a_while(
    companies: dict[str, Any], way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_s = 0.5
    quick = [(name, int(short_s * 1000)) for name, _ in grpc_carrier._AT_THE_DOOR]
    monkeypatch.setattr(grpc_carrier, "_AT_THE_DOOR", quick)
    monkeypatch.setitem(websocket_carrier._LIMITS, "open_timeout", short_s)
    with listening(companies, way) as port:
        before = descriptors()
        crowd = Crowd(port, size=60)
        try:
            assert crowd.left_after(20) == 0
            # Each socket of ours is still open; the listener's ends of them are not.
            assert descriptors() - before < 60 + 20
        finally:
            crowd.close()
