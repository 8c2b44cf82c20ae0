"""A peer of `celu doctor` that is silent, dies, is endless or sends anything: a bounded, clear end.

False numbers are in `test_false_numbers`. Time limits are tested in virtual time, the rest over
sockets.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

from celu.doctor import measure
from celu.doctor.diagnosis import diagnose_guest, diagnose_hosts
from celu.doctor.measure import ProbePlan
from celu.doctor.probes import MAX_GUEST_S, MAX_HOST_S, SPECS, Clocks
from celu.errors import CeluError, PeerFailed, PeerLost, ProtocolError
from celu.transport import stream
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.emulation import LinkEmulator
from celu.transport.link import Link, run_blocking
from celu.transport.memory import memory_links, run_together
from celu.transport.message import Kind, Message
from celu.transport.virtual_clock import VirtualClock
from doctor.setups import Setup, clocks_of, make_job

WAIT_S = 600.0
PLAN = ProbePlan(pings=3, bulk_s=0.1, pause_s=0.0, max_bytes=1 << 20)
Hostile = Callable[[Link], Coroutine[Any, Any, None]]


@contextmanager
def hostile_host(behave: Hostile) -> Iterator[Link]:
    """The guest's link, over a socket, to a host that exchanges hellos and then misbehaves."""
    ports: queue.Queue[int] = queue.Queue()
    common: Any = {"keys": None, "connect_s": WAIT_S, "outage_s": 0.5}
    over = threading.Event()

    async def play(link: Link) -> None:
        body = (await link.receive()).body or {}
        await link.send(Message(Kind.HELLO, body={**body, "name": "host"}))
        link.allow(SPECS)
        await link.send(Message(Kind.READY))
        assert (await link.receive()).kind is Kind.READY
        await behave(link)
        over.wait(WAIT_S)

    def host() -> None:
        there = Endpoint(
            "host",
            connect={"guest": Route(f"127.0.0.1:{ports.get(timeout=WAIT_S)}")},
            deadline_s=WAIT_S,
            **common,
        )
        with suppress(CeluError), open_links(there) as links:
            run_blocking(play(links["guest"]))

    thread = threading.Thread(target=host)
    thread.start()
    here = Endpoint("guest", "127.0.0.1:0", ("host",), deadline_s=5.0, **common)
    try:
        with open_links(here, ports.put) as links:
            yield links["host"]
            over.set()
    finally:
        over.set()
        thread.join(WAIT_S)


def diagnose(link: Link) -> object:
    job = make_job()
    found = diagnose_hosts("guest", job, {"host": link}, PLAN, Clocks(), lambda text: None)
    return run_blocking(found)


async def never_answer(link: Link) -> None:
    pass


async def close_midway(link: Link) -> None:
    await link.receive()
    link.close()


async def fail_midway(link: Link) -> None:
    await link.receive()
    await link.send(Message(Kind.FAILURE, body={"reason": "\x1b[2J" + "x" * 5000}))


async def send_tensors_of_training(link: Link) -> None:
    await link.send(Message(Kind.ACTIVATION, tensor=torch.zeros(4, 4)))


async def send_another_round(link: Link) -> None:
    await link.send(Message(Kind.FINDINGS, 2**60, body={"at": 1.7e9}))


async def send_a_contract_again(link: Link) -> None:
    await link.send(Message(Kind.HELLO, body={"name": "host"}))


async def send_no_body(link: Link) -> None:
    await link.send(Message(Kind.FINDINGS, 0))


@pytest.fixture(autouse=True)
def quick_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CLOSE_S", 0.5)


@pytest.mark.parametrize(
    ("behave", "error", "text"),
    [
        (never_answer, PeerLost, "host"),
        (close_midway, PeerLost, "host"),
        (fail_midway, PeerFailed, r"host stopped: \?\[2Jx"),
        (send_tensors_of_training, ProtocolError, "from host: ACTIVATION: not expected"),
        (send_another_round, ProtocolError, r"expected FINDINGS of round 0 .* from host"),
        (send_a_contract_again, ProtocolError, r"expected FINDINGS .*got HELLO .* from host"),
        (send_no_body, ProtocolError, "from host: FINDINGS: at: expected a number"),
    ],
)
def test_a_guest_ends_with_an_error_that_names_the_host(
    behave: Hostile, error: type[CeluError], text: str
) -> None:
    with hostile_host(behave) as link, pytest.raises(error, match=text) as caught:
        diagnose(link)
    assert len(str(caught.value)) < 1200


def test_a_host_that_makes_every_message_late_cannot_hold_a_guest() -> None:
    late = Setup(make_job(), lambda: (LinkEmulator(100, 0.01), LinkEmulator(1e-4, 30.0)))
    with pytest.raises(ProtocolError, match=f"with host did not end within {MAX_HOST_S:g} s"):
        late.diagnose()


@pytest.mark.parametrize(
    "request_",
    [
        Message(Kind.READY),
        Message(Kind.PROBE, tensor=torch.zeros(1, 1, dtype=torch.uint8)),
        measure.Probe(1, "to_host", 2, 1, 1, 60.0).to_message(),
    ],
    ids=["ready", "pings", "probes"],
)
def test_a_guest_cannot_hold_a_host(request_: Message) -> None:
    clocks = {"guest": VirtualClock(), "host": VirtualClock()}
    to_host, to_guest = memory_links(
        "guest",
        "host",
        clocks=(clocks["guest"], clocks["host"]),
        emulators=(LinkEmulator(100, 20.0), LinkEmulator(100, 20.0)),
    )

    async def guest() -> None:
        body = (await to_host.receive()).body or {}
        await to_host.send(Message(Kind.HELLO, body={**body, "name": "guest"}))
        await to_host.send(Message(Kind.READY))
        await to_host.receive()
        while True:
            await to_host.send(request_)
            if request_.kind is Kind.FINDINGS:
                for part in range(2):
                    probe = torch.zeros(1, 1, dtype=torch.uint8)
                    await to_host.send(Message(Kind.PROBE, 1, part, probe))
                await to_host.receive()
                await to_host.send(Message(Kind.FINDINGS, 1, body={"elapsed_s": 3000.0}))
            elif request_.kind is Kind.PROBE:
                await to_host.receive()
            clocks["guest"].wait_until(clocks["guest"].now() + 20.0)

    host = diagnose_guest(
        "host", make_job(), to_guest, clocks_of(clocks["host"]), lambda text: None
    )
    with pytest.raises(ProtocolError, match=f"with guest did not end within {MAX_GUEST_S:g} s"):
        run_together({"host": host, "guest": guest()}, [to_host, to_guest], clocks)  # type: ignore[dict-item]
