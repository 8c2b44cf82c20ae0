"""Connections that end, over real sockets: the conversation goes on as if nothing had been."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from celu.errors import PeerLost
from celu.transport.connect import Caller
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.stream import StreamLink
from transport.conftest import Federate
from transport.ways import WAYS

each_way = pytest.mark.parametrize("federate", [(way, 1) for way in WAYS], indirect=True, ids=WAYS)
some_ways = pytest.mark.parametrize(
    "federate", [(way, 1) for way in ("tls", "websocket")], indirect=True, ids=["tls", "websocket"]
)
SPEC = TensorSpec(300, 256)
COUNT = 60


def message(number: int) -> Message:
    rows = 1 + number * 37 % 300  # up to 300 KB, so that a cut falls within a message
    return Message(Kind.ACTIVATION, number, tensor=torch.full((rows, 256), float(number)))


async def talk(link: Link) -> list[Message]:
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


def cut(link: Link) -> None:
    assert isinstance(link, StreamLink)
    connection = link._current
    assert connection is not None
    connection.cut(PeerLost("cut by the test"))


@each_way
@pytest.mark.parametrize("seed", [1, 2])
def test_a_conversation_survives_its_connections(federate: Federate, seed: int) -> None:
    federation = federate(deadline_s=20, outage_s=20)
    ends = [federation.guest["airline"], federation.hosts["airline"]]
    chance, over = random.Random(seed), threading.Event()

    def nemesis() -> None:
        for _ in range(6):
            if over.wait(chance.uniform(0.0, 0.15)):
                return
            cut(chance.choice(ends))

    cutting = threading.Thread(target=nemesis)
    cutting.start()
    got = federation.run({"guest": talk(ends[0]), "host": talk(ends[1])})
    over.set()
    cutting.join(10)
    for arrived in got.values():
        assert isinstance(arrived, list), arrived
        assert [m.round for m in arrived] == list(range(COUNT))
        for m in arrived:
            expected = message(m.round).tensor
            assert m.tensor is not None and expected is not None
            assert torch.equal(m.tensor, expected)


@some_ways
def test_what_is_said_while_the_link_is_down_arrives_later(federate: Federate) -> None:
    federation = federate(deadline_s=20, outage_s=20)
    guest, host = federation.guest["airline"], federation.hosts["airline"]
    cut(guest)
    got = federation.run({"guest": talk(guest), "host": talk(host)})
    assert [m.round for m in got["guest"]] == [m.round for m in got["host"]] == list(range(COUNT))


@some_ways
def test_a_peer_that_falls_silent_is_noticed_within_two_heartbeats(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = federate(deadline_s=60, outage_s=60)
    guest, host = federation.guest["airline"], federation.hosts["airline"]
    assert isinstance(guest, StreamLink) and isinstance(host, StreamLink)
    down: list[float] = []
    monkeypatch.setattr(guest, "_notice", lambda event: down.append(time.monotonic()))
    connection = host._current
    assert connection is not None
    silent_since = time.monotonic()
    with host._changed:  # what a stopped process does: connected, and nothing is sent
        while not down and time.monotonic() < silent_since + 30:
            time.sleep(0.05)
    assert down, "not noticed"
    # Two heartbeats of 2 s; the watch looks four times a heartbeat. The rest is for this machine.
    assert down[0] - silent_since < 3 * guest.heartbeat_s
    got = federation.run({"guest": talk(guest), "host": talk(host)})
    assert [m.round for m in got["guest"]] == list(range(COUNT))


@some_ways
def test_a_link_that_nobody_keeps_up_any_more_says_so(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = federate(deadline_s=60, outage_s=60)
    guest, host = federation.guest["airline"], federation.hosts["airline"]

    def fail(caller: Caller) -> None:
        raise ZeroDivisionError("of a library, say")

    monkeypatch.setattr(Caller, "call", fail)
    began = time.monotonic()
    cut(host)
    got = federation.run({"host": host.receive()})
    assert isinstance(got["host"], PeerLost) and "ZeroDivisionError" in str(got["host"])
    assert isinstance(got["host"].__cause__, ZeroDivisionError)
    assert time.monotonic() - began < 30
    guest.close()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are not listed here")
def test_grpc_is_not_taken_down_between_attempts() -> None:
    code = """if True:
    import time
    from pathlib import Path
    from celu.transport.carrier import Route
    from celu.transport.grpc_carrier import OutgoingConnection
    from celu.transport.stream import StreamLink

    def make_connection():
        return StreamLink("guest", deadline_s=1).connection(calls=True)

    OutgoingConnection(Route("127.0.0.1:9"), "bank", "guest", None, make_connection).stop()
    time.sleep(1)  # what is taken down, is within some ms
    threads = {task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")}
    assert "event_engine" in threads, threads
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
