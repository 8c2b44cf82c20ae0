"""Which clients are admitted, over every transport; more of plain gRPC is in `test_tls`."""

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
from transport.bad_certificates import Keys, bad_clients, bad_listeners
from transport.transports import TRANSPORTS, Transport

NAMES = ["tls", "websocket", "inner-tls", "inner-tls-streams", "websocket-inner-tls"]
every_transport = pytest.mark.parametrize(
    "transport", [TRANSPORTS[name] for name in NAMES], ids=NAMES
)
through_a_gateway = pytest.mark.parametrize(
    "transport", [TRANSPORTS[name] for name in NAMES[2:]], ids=NAMES[2:]
)
CONTRACT = Message(Kind.HELLO, body={"name": "bank", "contract": {"seed": 1}})


@pytest.fixture(autouse=True)
def quick_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CLOSE_S", 0.5)


@contextmanager
def listening(transport: Transport, keys: Keys) -> Iterator[Listener]:
    admission = Admission(
        {peer: StreamLink(peer, deadline_s=600) for peer in keys[2]},
        Credentials.read(*keys),
        behind_gateway=transport.inner_tls,
    )
    listener = find_carrier(transport.carrier).listen("127.0.0.1:0", admission)
    try:
        yield listener
    finally:
        listener.stop()


def endpoint(transport: Transport, name: str, port: int, keys: Keys) -> Endpoint:
    connect = {"guest": transport.route(f"127.0.0.1:{port}")}
    return Endpoint(
        name,
        connect=connect,
        keys=keys,
        carrier=transport.carrier,
        connect_s=0.2,
        deadline_s=600,
        outage_s=1,
    )


def call(transport: Transport, name: str, port: int, keys: Keys) -> Message:
    """Connect like a host in `celu run`: send its contract, return the guest's first message."""
    with open_links(endpoint(transport, name, port, keys)) as links:
        run_blocking(links["guest"].send(CONTRACT))
        return run_blocking(links["guest"].receive())


def assert_nobody_connected(listener: Listener) -> None:
    """The client has no link, so no contract was read or sent."""
    with pytest.raises(PeerLost, match="did not connect with an acceptable certificate"):
        listener.wait(0)


@every_transport
@bad_clients
def test_a_client_with_a_bad_certificate_is_rejected(
    companies: dict[str, Any], tmp_path: Path, transport: Transport, client: Any
) -> None:
    with listening(transport, companies["guest"].keys(companies["bank"])) as listener:
        with pytest.raises(CertificateError):
            call(transport, "bank", listener.port, client(companies, tmp_path))
        assert_nobody_connected(listener)


@every_transport
def test_an_authority_cannot_sign_for_another_company(
    companies: dict[str, Any], tmp_path: Path, transport: Transport
) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    forged: Keys = (*bank.issue(tmp_path, "clinic"), bank.keys(guest)[2])
    with listening(transport, guest.keys(bank, clinic)) as listener:
        with pytest.raises(CertificateError):
            call(transport, "clinic", listener.port, forged)
        assert listener.rejections or transport.inner_tls
        assert_nobody_connected(listener)


@through_a_gateway
def test_the_name_that_a_client_claims_is_verified_by_the_inner_tls(
    companies: dict[str, Any], tmp_path: Path, transport: Transport
) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    branch: Keys = (*bank.issue(tmp_path, "branch"), bank.keys(guest)[2])
    with listening(transport, guest.keys(bank, clinic)) as listener:
        with pytest.raises(CertificateError):  # the clinic claims to be the bank
            call(transport, "bank", listener.port, clinic.keys(guest))
        with pytest.raises(CertificateError, match="not that of bank"):  # the right authority
            call(transport, "bank", listener.port, branch)
        with pytest.raises(CertificateError, match="a name not in the contract"):
            call(transport, "airline", listener.port, companies["airline"].keys(guest))
        assert any("not that of bank" in problem for problem in listener.rejections)
        assert_nobody_connected(listener)


@every_transport
@bad_listeners
def test_a_listener_with_a_bad_certificate_is_rejected(
    companies: dict[str, Any], tmp_path: Path, transport: Transport, listener: Any
) -> None:
    ours = companies["bank"].keys(companies["guest"])
    with listening(transport, listener(companies, tmp_path)) as there:
        with pytest.raises(CertificateError, match="not acceptable"):
            call(transport, "bank", there.port, ours)
        assert_nobody_connected(there)


@every_transport
def test_a_revoked_party_is_rejected_and_its_renewed_certificate_is_accepted(
    companies: dict[str, Any], tmp_path: Path, transport: Transport
) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    renewed = type(bank)("bank", tmp_path)
    make_authority(tmp_path, "celu")
    make_party(tmp_path, "bank")
    with listening(transport, guest.keys(clinic)) as listener:  # bank removed from party.toml
        with pytest.raises(CertificateError):
            call(transport, "bank", listener.port, bank.keys(guest))
        assert_nobody_connected(listener)
    with listening(transport, guest.keys(renewed)) as listener:  # ... or its CA replaced
        with pytest.raises(CertificateError):
            call(transport, "bank", listener.port, bank.keys(guest))
        with open_links(endpoint(transport, "bank", listener.port, renewed.keys(guest))) as links:
            run_blocking(listener.wait(600)["bank"].send(Message(Kind.READY)))
            assert run_blocking(links["guest"].receive()).kind is Kind.READY


@every_transport
def test_a_second_connection_of_a_party_is_rejected_and_the_first_stays(
    companies: dict[str, Any], transport: Transport
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with (
        listening(transport, guest.keys(bank)) as listener,
        open_links(endpoint(transport, "bank", listener.port, bank.keys(guest))) as links,
    ):
        ours = listener.wait(600)["bank"]
        with pytest.raises(PeerLost, match="bank is already connected"):
            call(transport, "bank", listener.port, bank.keys(guest))
        run_blocking(ours.send(Message(Kind.READY)))
        assert run_blocking(links["guest"].receive()).kind is Kind.READY


@through_a_gateway
def test_the_number_of_unauthenticated_clients_is_bounded(
    companies: dict[str, Any], transport: Transport
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with listening(transport, guest.keys(bank)) as listener:
        strangers = [listener.admission.admit("bank") for _ in range(20)]
        with open_links(endpoint(transport, "bank", listener.port, bank.keys(guest))) as links:
            run_blocking(listener.wait(600)["bank"].send(Message(Kind.READY)))
            assert run_blocking(links["guest"].receive()).kind is Kind.READY
        evicted = [stranger for stranger in strangers if stranger.problem is not None]
        assert evicted == strangers[: len(evicted)], "the oldest are disconnected first"
        assert len(strangers) - len(evicted) < carrier._MAX_UNAUTHENTICATED


@pytest.mark.parametrize(("ours", "theirs"), [("grpc", "websocket"), ("websocket", "grpc")])
def test_an_error_names_the_carriers_that_differ(
    companies: dict[str, Any], ours: str, theirs: str
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    error = f'carrier: expected the same at all parties, got "{ours}" here and "{theirs}" at guest'
    with listening(Transport(theirs), guest.keys(bank)) as listener:
        with pytest.raises(ConfigError, match=error):
            call(Transport(ours), "bank", listener.port, bank.keys(guest))
        assert_nobody_connected(listener)


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_dialing_a_party_behind_a_gateway_directly_is_explained(
    companies: dict[str, Any], carrier: str
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with listening(Transport(carrier, inner_tls=True), guest.keys(bank)) as listener:
        with pytest.raises(CertificateError, match=r"does not speak TLS.*peers\.guest\.gateway"):
            call(Transport(carrier), "bank", listener.port, bank.keys(guest))
        assert_nobody_connected(listener)


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_an_error_names_a_port_that_is_in_use(companies: dict[str, Any], carrier: str) -> None:
    with listening(Transport(carrier), companies["guest"].keys(companies["bank"])) as listener:
        address = f"127.0.0.1:{listener.port}"
        with pytest.raises(ConfigError, match=f"free port, got {address}"):
            find_carrier(carrier).listen(address, listener.admission)


def test_an_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "celu.transport.websocket_carrier", raising=False)
    monkeypatch.setitem(sys.modules, "websockets.asyncio.client", None)
    with pytest.raises(ConfigError, match=r'pip install "celu\[websocket\]"'):
        find_carrier("websocket")
