"""Links in virtual time: which faults they survive, and what ends them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from celu.errors import CeluError, PeerFailed, PeerLost, PeerRestarted
from celu.transport.message import Kind, Message
from celu.transport.wire import PIECE_BYTES
from chaos.checks import DeliveryCheck
from chaos.connection import HEARTBEAT_S, LinkContext
from chaos.link import CONNECT_S, DEADLINE_S, OUTAGE_S, ChaosLink
from chaos.network import Network
from chaos.simulator import Process, Simulator


class Net:
    """Processes with one link each; the guest listens, the host dials."""

    def __init__(self, *, inner_tls: bool) -> None:
        self.inner_tls = inner_tls
        self.simulator = Simulator(1)
        self.network = Network(self.simulator)
        self.check = DeliveryCheck()

    def link(self, name: str, peer: str) -> ChaosLink:
        process = Process(self.simulator, name, lambda power_cut: None)
        context = LinkContext(
            process, self.network, self.check, lambda: None, PIECE_BYTES, self.inner_tls
        )
        link = ChaosLink(context, peer, dials=name != "guest")
        if name == "guest":
            self.network.listen(process, link.accept)
        return link

    def kill(self, link: ChaosLink, *, silently: bool = False) -> None:
        link.context.process.exit()
        self.network.disconnect(link.context.process, silently=silently)

    def wait(self, seconds: float) -> None:
        self.simulator.run(lambda: False, self.simulator.now + seconds)

    def get(self, coroutine: Coroutine[Any, Any, Any], within_s: float = 200.0) -> Any:
        """Run a send or a receive to its end."""
        until = self.simulator.now + within_s
        while self.simulator.now < until:
            try:
                coroutine.send(None)
            except StopIteration as done:
                return done.value
            self.wait(0.01)
        coroutine.close()
        raise AssertionError(f"not done in {within_s} s")


@pytest.fixture(params=[True, False], ids=["inner-tls", "direct"])
def net(request: pytest.FixtureRequest) -> Net:
    return Net(inner_tls=request.param)


@pytest.fixture
def pair(net: Net) -> tuple[ChaosLink, ChaosLink]:
    guest = net.link("guest", "host")
    host = net.link("host", "guest")
    net.get(host.send(Message(Kind.READY)))
    assert net.get(guest.receive()).kind is Kind.READY
    return guest, host


def send(net: Net, link: ChaosLink, round_: int) -> None:
    net.get(link.send(Message(Kind.VERDICT, round_, body={})))


def test_messages_sent_during_a_partition_arrive_afterwards(
    net: Net, pair: tuple[ChaosLink, ChaosLink]
) -> None:
    guest, host = pair
    net.network.partition(("host", "guest"), 10.0)
    for round_ in range(3):
        send(net, host, round_)
    assert [net.get(guest.receive()).round for _ in range(3)] == [0, 1, 2]
    assert net.simulator.now > 10.0


@pytest.mark.parametrize(
    "tampering",
    [
        lambda record: [],
        lambda record: [record, record],
        lambda record: [record[:-1]],
        lambda record: [record[:3]],
        lambda record: [bytes([record[0] ^ 1]) + record[1:]],
        lambda record: [record[:-1] + bytes([record[-1] ^ 0x80])],
    ],
    ids=["drop", "duplicate", "truncate", "truncate to 3 bytes", "flip", "flip the last bit"],
)
def test_a_damaged_record_ends_the_connection_but_not_the_link(
    net: Net, pair: tuple[ChaosLink, ChaosLink], tampering: Callable[[bytes], list[bytes]]
) -> None:
    guest, host = pair
    before = guest._current
    net.network.tamper(("host", "guest"), tampering)
    for round_ in range(3):
        send(net, host, round_)
    assert [net.get(guest.receive()).round for _ in range(3)] == [0, 1, 2]
    assert before is not None and before.is_over
    assert guest._current is not before


def test_a_second_process_does_not_replace_one_that_is_alive(
    net: Net, pair: tuple[ChaosLink, ChaosLink]
) -> None:
    guest, host = pair
    second = net.link("host", "guest")
    net.wait(5.0)
    send(net, host, 7)
    assert net.get(guest.receive()).round == 7
    second.end()


@pytest.mark.parametrize("silently", [False, True], ids=["killed", "power cut"])
def test_a_new_process_after_a_dead_one_is_a_restart(
    net: Net, pair: tuple[ChaosLink, ChaosLink], silently: bool
) -> None:
    guest, host = pair
    net.kill(host, silently=silently)
    net.link("host", "guest")
    with pytest.raises(PeerRestarted):
        net.get(guest.receive(), within_s=4 * HEARTBEAT_S)


def test_the_dialing_side_detects_a_restart_of_its_peer(
    net: Net, pair: tuple[ChaosLink, ChaosLink]
) -> None:
    guest, host = pair
    net.kill(guest)
    net.link("guest", "host")
    with pytest.raises(PeerRestarted):
        net.get(host.receive(), within_s=10.0)


def receive_error(net: Net, link: ChaosLink) -> tuple[CeluError, float]:
    began = net.simulator.now
    with pytest.raises(CeluError) as raised:
        net.get(link.receive())
    return raised.value, net.simulator.now - began


def test_every_wait_has_a_deadline(net: Net, pair: tuple[ChaosLink, ChaosLink]) -> None:
    guest, host = pair
    error, seconds = receive_error(net, guest)  # the host is connected and sends nothing
    assert isinstance(error, PeerLost) and seconds == pytest.approx(DEADLINE_S, abs=1.0)
    net.kill(guest)
    error, seconds = receive_error(net, host)
    assert isinstance(error, PeerLost) and seconds == pytest.approx(OUTAGE_S, abs=1.0)


def test_a_link_that_never_connects_ends_at_the_deadline(net: Net) -> None:
    error, seconds = receive_error(net, net.link("host", "guest"))
    assert isinstance(error, PeerLost) and seconds == pytest.approx(CONNECT_S, abs=1.0)


def test_a_failure_message_ends_the_link_after_earlier_messages(
    net: Net, pair: tuple[ChaosLink, ChaosLink]
) -> None:
    guest, host = pair
    send(net, host, 3)
    net.get(host.send(Message(Kind.FAILURE, body={"reason": "enough"})))
    assert net.get(guest.receive()).round == 3
    error, _ = receive_error(net, guest)
    assert isinstance(error, PeerFailed) and "enough" in str(error)
