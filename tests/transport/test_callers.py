"""Who gets in and who does not, over every way; plain gRPC has more in `test_tls`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from celu.certs import make_authority, make_party
from celu.errors import CertificateError, ConfigError, PeerLost
from celu.transport import carrier, stream
from celu.transport.carrier import Admission, Listener
from celu.transport.connect import Endpoint, find_carrier, open_links
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials
from transport.callers import Keys, bad_callers, bad_listeners
from transport.ways import WAYS, Way

NAMES = ["tls", "websocket", "sealed", "sealed-streams", "websocket-sealed"]
every_way = pytest.mark.parametrize("way", [WAYS[name] for name in NAMES], ids=NAMES)
sealed_ways = pytest.mark.parametrize("way", [WAYS[name] for name in NAMES[2:]], ids=NAMES[2:])
CONTRACT = Message(Kind.HELLO, body={"name": "bank", "contract": {"seed": 1}})


@pytest.fixture(autouse=True)
def quick_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CLOSE_S", 0.5)


@contextmanager
def listening(way: Way, keys: Keys) -> Iterator[Listener]:
    arrivals = Admission(
        {peer: StreamLink(peer, deadline_s=10) for peer in keys[2]},
        Credentials.read(*keys),
        behind_gateway=way.sealed,
    )
    listener = find_carrier(way.carrier).listen("127.0.0.1:0", arrivals)
    try:
        yield listener
    finally:
        listener.stop()


def endpoint(way: Way, name: str, port: int, keys: Keys) -> Endpoint:
    connect = {"guest": way.route(f"127.0.0.1:{port}")}
    return Endpoint(
        name,
        connect=connect,
        keys=keys,
        carrier=way.carrier,
        connect_s=0.2,
        deadline_s=5,
        outage_s=1,
    )


def call(way: Way, name: str, port: int, keys: Keys) -> Message:
    """A host's side as `celu run` has it: its contract, then the first thing the guest says."""
    with open_links(endpoint(way, name, port, keys)) as links:
        run_blocking(links["guest"].send(CONTRACT))
        return run_blocking(links["guest"].receive())


def assert_nobody_came(listener: Listener) -> None:
    """There is no link to the caller, so nothing of its contract was read, and none was sent."""
    with pytest.raises(PeerLost, match="did not connect with an acceptable certificate"):
        listener.wait(0)


@every_way
@bad_callers
def test_a_caller_whose_certificate_will_not_do_is_refused(
    companies: dict[str, Any], tmp_path: Path, way: Way, caller: Any
) -> None:
    with listening(way, companies["guest"].keys(companies["bank"])) as listener:
        with pytest.raises(CertificateError):
            call(way, "bank", listener.port, caller(companies, tmp_path))
        assert_nobody_came(listener)


@every_way
def test_an_authority_vouches_for_its_own_company_alone(
    companies: dict[str, Any], tmp_path: Path, way: Way
) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    forged: Keys = (*bank.issue(tmp_path, "clinic"), bank.keys(guest)[2])
    with listening(way, guest.keys(bank, clinic)) as listener:
        with pytest.raises(CertificateError):
            call(way, "clinic", listener.port, forged)
        assert listener.refused or way.sealed
        assert_nobody_came(listener)


@sealed_ways
def test_the_name_that_a_caller_claims_outside_is_proven_inside(
    companies: dict[str, Any], tmp_path: Path, way: Way
) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    branch: Keys = (*bank.issue(tmp_path, "branch"), bank.keys(guest)[2])
    with listening(way, guest.keys(bank, clinic)) as listener:
        with pytest.raises(CertificateError):  # the clinic says that it is the bank
            call(way, "bank", listener.port, clinic.keys(guest))
        with pytest.raises(CertificateError, match="not that of bank"):  # the right authority
            call(way, "bank", listener.port, branch)
        with pytest.raises(CertificateError, match="a name not in the contract"):
            call(way, "airline", listener.port, companies["airline"].keys(guest))
        assert any("not that of bank" in problem for problem in listener.refused)
        assert_nobody_came(listener)


@every_way
@bad_listeners
def test_a_listener_whose_certificate_will_not_do_is_refused(
    companies: dict[str, Any], tmp_path: Path, way: Way, listener: Any
) -> None:
    ours = companies["bank"].keys(companies["guest"])
    with listening(way, listener(companies, tmp_path)) as there:
        with pytest.raises(CertificateError, match="not acceptable"):
            call(way, "bank", there.port, ours)
        assert_nobody_came(there)


@every_way
def test_whoever_is_no_longer_trusted_is_refused_and_its_new_certificate_is_not(
    companies: dict[str, Any], tmp_path: Path, way: Way
) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    renewed = type(bank)("bank", tmp_path)
    make_authority(tmp_path, "celu")
    make_party(tmp_path, "bank")
    with listening(way, guest.keys(clinic)) as listener:  # the bank was taken out of party.toml
        with pytest.raises(CertificateError):
            call(way, "bank", listener.port, bank.keys(guest))
        assert_nobody_came(listener)
    with listening(way, guest.keys(renewed)) as listener:  # ... or its authority was replaced
        with pytest.raises(CertificateError):
            call(way, "bank", listener.port, bank.keys(guest))
        with open_links(endpoint(way, "bank", listener.port, renewed.keys(guest))) as links:
            run_blocking(listener.wait(10)["bank"].send(Message(Kind.READY)))
            assert run_blocking(links["guest"].receive()).kind is Kind.READY


@every_way
def test_a_party_that_connects_twice_is_refused_and_the_first_stays(
    companies: dict[str, Any], way: Way
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with (
        listening(way, guest.keys(bank)) as listener,
        open_links(endpoint(way, "bank", listener.port, bank.keys(guest))) as links,
    ):
        ours = listener.wait(10)["bank"]
        with pytest.raises(PeerLost, match="bank is connected already"):
            call(way, "bank", listener.port, bank.keys(guest))
        run_blocking(ours.send(Message(Kind.READY)))
        assert run_blocking(links["guest"].receive()).kind is Kind.READY


@sealed_ways
def test_callers_that_prove_nothing_are_few_at_a_time(
    companies: dict[str, Any], way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "_UNPROVEN", 0)
    guest, bank = companies["guest"], companies["bank"]
    with (
        listening(way, guest.keys(bank)) as listener,
        pytest.raises(CertificateError, match="too many callers"),
    ):
        call(way, "bank", listener.port, bank.keys(guest))


@pytest.mark.parametrize(("ours", "theirs"), [("grpc", "websocket"), ("websocket", "grpc")])
def test_another_carrier_at_the_other_side_is_named(
    companies: dict[str, Any], ours: str, theirs: str
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    said = f'carrier: expected the same at all parties, got "{ours}" here and "{theirs}" at guest'
    with listening(Way(theirs), guest.keys(bank)) as listener:
        with pytest.raises(ConfigError, match=said):
            call(Way(ours), "bank", listener.port, bank.keys(guest))
        assert_nobody_came(listener)


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_a_party_behind_a_gateway_that_is_called_directly_says_so(
    companies: dict[str, Any], carrier: str
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    # A listener for WebSockets closes without a word, as one might that is not there yet.
    error = CertificateError if carrier == "grpc" else PeerLost
    with listening(Way(carrier, sealed=True), guest.keys(bank)) as listener:
        with pytest.raises(error, match=r"does not speak TLS.*peers\.guest\.gateway"):
            call(Way(carrier), "bank", listener.port, bank.keys(guest))
        assert_nobody_came(listener)


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_a_port_that_is_taken_is_named(companies: dict[str, Any], carrier: str) -> None:
    with listening(Way(carrier), companies["guest"].keys(companies["bank"])) as listener:
        address = f"127.0.0.1:{listener.port}"
        with pytest.raises(ConfigError, match=f"free port, got {address}"):
            find_carrier(carrier).listen(address, listener.arrivals)


def test_a_carrier_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "celu.transport.websocket_carrier", raising=False)
    monkeypatch.setitem(sys.modules, "websockets.asyncio.client", None)
    with pytest.raises(ConfigError, match=r'pip install "celu\[websocket\]"'):
        find_carrier("websocket")
