"""Links in virtual time: what they bear, and what ends them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from celu.errors import CeluError, PeerFailed, PeerLost, PeerRestarted
from celu.transport.message import Kind, Message
from celu.transport.wire import PIECE_BYTES
from chaos.checks import Ledger
from chaos.connection import HEARTBEAT_S, Surroundings
from chaos.link import CONNECT_S, DEADLINE_S, OUTAGE_S, ChaosLink
from chaos.wire import Network
from chaos.world import Process, World


class Net:
    """Processes with one link each; the guest listens."""

    def __init__(self, *, sealed: bool) -> None:
        self.sealed = sealed
        self.world = World(1)
        self.network = Network(self.world)
        self.ledger = Ledger()

    def link(self, name: str, peer: str) -> ChaosLink:
        process = Process(self.world, name, lambda power_cut: None)
        around = Surroundings(
            process, self.network, self.ledger, lambda: None, PIECE_BYTES, self.sealed
        )
        link = ChaosLink(around, peer, calls=name != "guest")
        if name == "guest":
            self.network.listen(process, link.accept)
        return link

    def kill(self, link: ChaosLink, *, silently: bool = False) -> None:
        link.around.process.exit()
        self.network.gone(link.around.process, silently=silently)

    def wait(self, seconds: float) -> None:
        self.world.run(lambda: False, self.world.now + seconds)

    def get(self, program: Coroutine[Any, Any, Any], within_s: float = 200.0) -> Any:
        """What a send or a receive gives, once it does."""
        until = self.world.now + within_s
        while self.world.now < until:
            try:
                program.send(None)
            except StopIteration as done:
                return done.value
            self.wait(0.01)
        program.close()
        raise AssertionError(f"nothing in {within_s} s")


@pytest.fixture(params=[True, False], ids=["sealed", "direct"])
def net(request: pytest.FixtureRequest) -> Net:
    return Net(sealed=request.param)


@pytest.fixture
def pair(net: Net) -> tuple[ChaosLink, ChaosLink]:
    guest = net.link("guest", "host")
    host = net.link("host", "guest")
    net.get(host.send(Message(Kind.READY)))
    assert net.get(guest.receive()).kind is Kind.READY
    return guest, host


def say(net: Net, link: ChaosLink, round_: int) -> None:
    net.get(link.send(Message(Kind.VERDICT, round_, body={})))


def test_what_is_said_while_the_wire_is_cut_arrives_afterwards(
    net: Net, pair: tuple[ChaosLink, ChaosLink]
) -> None:
    guest, host = pair
    net.network.cut(("host", "guest"), 10.0)
    for round_ in range(3):
        say(net, host, round_)
    assert [net.get(guest.receive()).round for _ in range(3)] == [0, 1, 2]
    assert net.world.now > 10.0


@pytest.mark.parametrize(
    "arrives",
    [
        lambda record: [],
        lambda record: [record, record],
        lambda record: [record[:-1]],
        lambda record: [record[:3]],
        lambda record: [bytes([record[0] ^ 1]) + record[1:]],
        lambda record: [record[:-1] + bytes([record[-1] ^ 0x80])],
    ],
    ids=["nothing", "twice", "cut short", "hardly", "a bit flipped", "the last bit flipped"],
)
def test_what_does_not_arrive_as_it_was_sent_ends_the_connection_alone(
    net: Net, pair: tuple[ChaosLink, ChaosLink], arrives: Callable[[bytes], list[bytes]]
) -> None:
    guest, host = pair
    before = guest._current
    net.network.tamper(("host", "guest"), arrives)
    for round_ in range(3):
        say(net, host, round_)
    assert [net.get(guest.receive()).round for _ in range(3)] == [0, 1, 2]
    assert before is not None and before.is_over
    assert guest._current is not before


def test_a_second_process_does_not_push_out_the_first_while_that_is_heard(
    net: Net, pair: tuple[ChaosLink, ChaosLink]
) -> None:
    guest, host = pair
    second = net.link("host", "guest")
    net.wait(5.0)
    say(net, host, 7)
    assert net.get(guest.receive()).round == 7
    second.end()


@pytest.mark.parametrize("silently", [False, True], ids=["killed", "without power"])
def test_a_process_that_follows_another_is_taken_for_a_restart(
    net: Net, pair: tuple[ChaosLink, ChaosLink], silently: bool
) -> None:
    guest, host = pair
    net.kill(host, silently=silently)
    net.link("host", "guest")
    with pytest.raises(PeerRestarted):
        net.get(guest.receive(), within_s=4 * HEARTBEAT_S)


def test_a_caller_learns_that_the_one_it_called_began_anew(
    net: Net, pair: tuple[ChaosLink, ChaosLink]
) -> None:
    guest, host = pair
    net.kill(guest)
    net.link("guest", "host")
    with pytest.raises(PeerRestarted):
        net.get(host.receive(), within_s=10.0)


def ends(net: Net, link: ChaosLink) -> tuple[CeluError, float]:
    began = net.world.now
    with pytest.raises(CeluError) as raised:
        net.get(link.receive())
    return raised.value, net.world.now - began


def test_every_wait_has_a_deadline(net: Net, pair: tuple[ChaosLink, ChaosLink]) -> None:
    guest, host = pair
    error, seconds = ends(net, guest)  # the host is there, and says nothing
    assert isinstance(error, PeerLost) and seconds == pytest.approx(DEADLINE_S, abs=1.0)
    net.kill(guest)
    error, seconds = ends(net, host)
    assert isinstance(error, PeerLost) and seconds == pytest.approx(OUTAGE_S, abs=1.0)


def test_nobody_to_call_ends_a_link_that_was_never_up(net: Net) -> None:
    error, seconds = ends(net, net.link("host", "guest"))
    assert isinstance(error, PeerLost) and seconds == pytest.approx(CONNECT_S, abs=1.0)


def test_a_failure_that_is_told_ends_the_link_after_all_that_was_said_before(
    net: Net, pair: tuple[ChaosLink, ChaosLink]
) -> None:
    guest, host = pair
    say(net, host, 3)
    net.get(host.send(Message(Kind.FAILURE, body={"reason": "enough"})))
    assert net.get(guest.receive()).round == 3
    error, _ = ends(net, guest)
    assert isinstance(error, PeerFailed) and "enough" in str(error)
