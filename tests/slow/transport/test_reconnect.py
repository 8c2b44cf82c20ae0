"""Connections that break, over real sockets: the session continues without loss."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from celu.errors import PeerLost
from celu.transport.connect import Dialer
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.stream import StreamLink
from transport.conftest import Federate
from transport.transports import TRANSPORTS

every_transport = pytest.mark.parametrize(
    "federate", [(name, 1) for name in TRANSPORTS], indirect=True, ids=TRANSPORTS
)
both_carriers = pytest.mark.parametrize(
    "federate",
    [(name, 1) for name in ("tls", "websocket")],
    indirect=True,
    ids=["tls", "websocket"],
)
SPEC = TensorSpec(300, 256)
COUNT = 60


def message(number: int) -> Message:
    rows = 1 + number * 37 % 300  # up to 300 KB, so that a connection breaks within a message
    return Message(Kind.ACTIVATION, number, tensor=torch.full((rows, 256), float(number)))


async def exchange(link: Link) -> list[Message]:
    """Send and receive in turn."""
    await link.send(Message(Kind.READY))
    link.allow({Kind.ACTIVATION: SPEC})
    await link.receive()
    await link.send(Message(Kind.READY))
    await link.receive()
    arrived = []
    for number in range(COUNT):
        await link.send(message(number))
        arrived.append(await link.receive())
    return arrived


def break_connection(link: Link) -> None:
    assert isinstance(link, StreamLink)
    connection = link._connections.current
    assert connection is not None
    connection.abort(PeerLost("aborted by the test"))


@every_transport
@pytest.mark.parametrize("seed", [1, 2])
def test_a_session_survives_broken_connections(federate: Federate, seed: int) -> None:
    federation = federate(deadline_s=600, outage_s=600)
    ends = [federation.guest["airline"], federation.hosts["airline"]]
    rng, done = random.Random(seed), threading.Event()

    def nemesis() -> None:
        for _ in range(6):
            if done.wait(rng.uniform(0.0, 0.15)):
                return
            break_connection(rng.choice(ends))

    thread = threading.Thread(target=nemesis)
    thread.start()
    got = federation.run({"guest": exchange(ends[0]), "host": exchange(ends[1])})
    done.set()
    thread.join(600)
    for arrived in got.values():
        assert isinstance(arrived, list), arrived
        assert [m.round for m in arrived] == list(range(COUNT))
        for m in arrived:
            expected = message(m.round).tensor
            assert m.tensor is not None and expected is not None
            assert torch.equal(m.tensor, expected)


@both_carriers
def test_messages_sent_while_the_link_is_down_arrive_later(federate: Federate) -> None:
    federation = federate(deadline_s=600, outage_s=600)
    guest, host = federation.guest["airline"], federation.hosts["airline"]
    break_connection(guest)
    got = federation.run({"guest": exchange(guest), "host": exchange(host)})
    assert [m.round for m in got["guest"]] == [m.round for m in got["host"]] == list(range(COUNT))


@both_carriers
def test_a_silent_peer_is_detected_within_two_heartbeats(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = federate(deadline_s=600, outage_s=600, heartbeat_s=1)
    guest, host = federation.guest["airline"], federation.hosts["airline"]
    assert isinstance(guest, StreamLink) and isinstance(host, StreamLink)
    down: list[Any] = []
    monkeypatch.setattr(guest, "_on_event", down.append)
    connection = host._connections.current
    assert connection is not None
    silent_since = time.monotonic()
    with host._waits.lock:  # like a stopped process: connected, but sends nothing
        while not down and time.monotonic() < silent_since + 600:
            time.sleep(0.05)
    assert down, "not detected"
    assert "for 2 s" in down[0].reason  # two heartbeats
    got = federation.run({"guest": exchange(guest), "host": exchange(host)})
    assert [m.round for m in got["guest"]] == list(range(COUNT))


@both_carriers
def test_an_unexpected_error_while_reconnecting_fails_the_link(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = federate(deadline_s=600, outage_s=600)
    guest, host = federation.guest["airline"], federation.hosts["airline"]

    def fail(dialer: Dialer) -> None:
        raise ZeroDivisionError("in a library")

    monkeypatch.setattr(Dialer, "dial", fail)
    break_connection(host)
    got = federation.run({"host": host.receive()})
    assert isinstance(got["host"], PeerLost) and "ZeroDivisionError" in str(got["host"])
    assert isinstance(got["host"].__cause__, ZeroDivisionError)
    guest.close()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc/self/task")
def test_the_thread_pool_of_grpc_stays_between_attempts() -> None:
    code = """if True:
    import time
    from pathlib import Path
    from celu.transport.carrier import Route
    from celu.transport.grpc_carrier import OutgoingConnection
    from celu.transport.stream import StreamLink

    def make_connection():
        return StreamLink("guest", deadline_s=1).new_connection(dials=True)

    OutgoingConnection(Route("127.0.0.1:9"), "bank", "guest", None, make_connection).stop()
    time.sleep(1)  # a shutdown would take a few ms
    threads = {task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")}
    assert "event_engine" in threads, threads
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
