"""Authentication over real sockets, and the certificate files it needs."""

from __future__ import annotations

import datetime as dt
import queue
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from celu.certs import make_authority, make_party
from celu.cli.app import app
from celu.errors import CertificateError, ConfigError, PeerLost
from celu.transport import preflight, stream
from celu.transport.carrier import Admission, Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.grpc_carrier import Listener, OutgoingConnection
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials
from transport.bad_certificates import HOUR, Keys, bad_clients

CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


@pytest.fixture(autouse=True)
def quick_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CLOSE_S", 0.5)


@contextmanager
def listening(keys: Keys, deadline_s: float = 600.0) -> Iterator[Listener]:
    """The guest's listener, for the peers whose authorities it has."""
    links = {peer: StreamLink(peer, deadline_s=deadline_s) for peer in keys[2]}
    admission = Admission(links, Credentials.read(*keys))
    listener = Listener("127.0.0.1:0", admission)
    try:
        yield listener
    finally:
        listener.stop()


def address_of(listener: Listener) -> str:
    return f"127.0.0.1:{listener.port}"


def call(name: str, address: str, keys: Keys, connect_s: float = 600.0) -> Message:
    """Connect like a host in `celu run`; returns the guest's first message."""
    endpoint = Endpoint(
        name,
        connect={"guest": Route(address)},
        keys=keys,
        connect_s=connect_s,
        deadline_s=600,
        outage_s=1,
    )
    with open_links(endpoint) as links:
        return run_blocking(links["guest"].receive())


def dial_without_preflight(name: str, address: str, keys: Keys) -> None:
    """Connect like a host, without the preflight: gRPC alone decides."""
    link = StreamLink("guest", deadline_s=0.4)
    outgoing = OutgoingConnection(
        Route(address),
        name,
        "guest",
        Credentials.read(*keys),
        lambda: link.new_connection(dials=True),
    )
    try:
        link.wait_until_greeted(outgoing.connection, 0.4)
    finally:
        outgoing.stop()
        link.close()


def assert_nobody_connected(listener: Listener) -> None:
    with pytest.raises(PeerLost, match=r"did not connect with(out TLS| an acceptable certificate)"):
        listener.wait(0)


def test_two_companies_that_trust_each_others_authority_connect(companies: dict[str, Any]) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with listening(guest.keys(bank)) as listener:
        endpoint = Endpoint(
            "bank", connect={"guest": Route(address_of(listener))}, keys=bank.keys(guest)
        )
        with open_links(endpoint) as links:
            ours = listener.wait(600)["bank"]
            run_blocking(ours.send(Message(Kind.HELLO, body={"name": "guest"})))
            assert run_blocking(links["guest"].receive()).body == {"name": "guest"}
            run_blocking(links["guest"].send(Message(Kind.READY)))
            assert run_blocking(ours.receive()).kind is Kind.READY
    assert not listener.rejections


@bad_clients
def test_a_client_with_a_bad_certificate_is_rejected_with_a_reason(
    companies: dict[str, Any], tmp_path: Path, client: Any
) -> None:
    with listening(companies["guest"].keys(companies["bank"])) as listener:
        keys = client(companies, tmp_path)
        why = f"rejected our certificate {keys[0]}|rejected us: a client's certificate is for none"
        with pytest.raises(CertificateError, match=why):
            call("bank", address_of(listener), keys)
        assert_nobody_connected(listener)


@bad_clients
def test_a_client_without_preflight_is_rejected_by_the_carrier(
    companies: dict[str, Any], tmp_path: Path, client: Any
) -> None:
    with listening(companies["guest"].keys(companies["bank"])) as listener:
        with pytest.raises((PeerLost, CertificateError)):
            dial_without_preflight("bank", address_of(listener), client(companies, tmp_path))
        assert_nobody_connected(listener)


BAD_LISTENERS = {
    "expired": ({"valid": (-2 * HOUR, -HOUR)}, "certificate has expired"),
    "not yet valid": ({"valid": (HOUR, 2 * HOUR)}, "not yet valid"),
    "a client's certificate": ({"uses": (CLIENT,)}, "purpose"),
}


@pytest.mark.parametrize(("changes", "why"), BAD_LISTENERS.values(), ids=BAD_LISTENERS)
@pytest.mark.parametrize("preflight_first", [True, False])
def test_a_listener_with_a_bad_certificate_is_rejected(
    companies: dict[str, Any],
    tmp_path: Path,
    changes: dict[str, Any],
    why: str,
    preflight_first: bool,
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    odd: Keys = (*guest.issue(tmp_path, "guest", **changes), guest.keys(bank)[2])
    with listening(odd) as listener:
        if preflight_first:
            with pytest.raises(CertificateError, match=why):
                call("bank", address_of(listener), bank.keys(guest))
        else:
            with pytest.raises(PeerLost):
                dial_without_preflight("bank", address_of(listener), bank.keys(guest))
        assert_nobody_connected(listener)


@pytest.mark.parametrize("preflight_first", [True, False])
def test_a_listener_with_another_authority_or_name_is_rejected(
    companies: dict[str, Any], preflight_first: bool
) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    # gRPC alone reports no reason: it retries until our deadline.
    expected, error = (
        (CertificateError, "not acceptable") if preflight_first else (PeerLost, "did not answer")
    )
    dial: Callable[..., Any] = call if preflight_first else dial_without_preflight
    with listening(guest.keys(bank)) as listener:
        with pytest.raises(expected, match=error):  # we trust another authority
            dial("bank", address_of(listener), (bank.certificate, bank.key, {"guest": clinic.ca}))
        assert_nobody_connected(listener)
    with listening(clinic.keys(bank)) as listener:
        with pytest.raises(expected, match=error):  # the clinic claims to be the guest
            dial("bank", address_of(listener), (bank.certificate, bank.key, {"guest": clinic.ca}))
        assert_nobody_connected(listener)


def test_an_authority_cannot_sign_for_another_company(
    companies: dict[str, Any], tmp_path: Path
) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    forged: Keys = (*bank.issue(tmp_path, "clinic"), bank.keys(guest)[2])
    with listening(guest.keys(bank, clinic)) as listener:
        with pytest.raises(CertificateError, match="for none of the expected parties"):
            call("clinic", address_of(listener), forged)
        assert list(listener.rejections) == [
            "a client's certificate is for none of the expected parties"
        ]
        assert_nobody_connected(listener)


def test_a_name_that_the_listener_does_not_expect_is_rejected(
    companies: dict[str, Any], tmp_path: Path
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    other: Keys = (*bank.issue(tmp_path, "branch"), bank.keys(guest)[2])
    with listening(guest.keys(bank)) as listener:
        # Its metadata has the bank's name, but only the certificate counts.
        with pytest.raises(CertificateError, match="for none of the expected parties"):
            call("bank", address_of(listener), other)
        with pytest.raises(PeerLost, match="rejected clients: a client's certificate"):
            listener.wait(0)


def test_a_second_connection_of_a_party_is_rejected_and_the_first_stays(
    companies: dict[str, Any],
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with listening(guest.keys(bank)) as listener:
        endpoint = Endpoint(
            "bank", connect={"guest": Route(address_of(listener))}, keys=bank.keys(guest)
        )
        with open_links(endpoint) as links:
            ours = listener.wait(600)["bank"]
            with pytest.raises(PeerLost, match="bank is already connected"):
                call("bank", address_of(listener), bank.keys(guest), connect_s=0.5)
            run_blocking(ours.send(Message(Kind.READY)))
            assert run_blocking(links["guest"].receive()).kind is Kind.READY


@pytest.mark.parametrize("use_rsa", [False, True], ids=["elliptic", "rsa"])
@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_only_tls_1_3_is_accepted(
    companies: dict[str, Any], tmp_path: Path, version: str, use_rsa: bool
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    odd: Keys = (*guest.issue(tmp_path, "guest", use_rsa=use_rsa), guest.keys(bank)[2])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    context.load_cert_chain(bank.certificate, bank.key)
    context.load_verify_locations(guest.ca)
    context.set_alpn_protocols(["h2"])

    def greeted() -> bool:
        with (
            socket.create_connection(("127.0.0.1", listener.port), timeout=600) as raw,
            context.wrap_socket(raw, server_hostname="guest") as secured,
        ):
            return bool(secured.recv(1))

    with listening(odd) as listener:
        if version == "TLSv1_3":
            assert greeted()
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                assert not greeted(), "a TLS 1.2 client was accepted"


def test_dialing_a_closed_port_raises_peer_lost_after_connect_s(
    companies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(preflight.time, "monotonic", lambda: float(next(clock)))
    slept: list[float] = []
    monkeypatch.setattr(preflight.time, "sleep", slept.append)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # but not listening
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(PeerLost, match=rf"no answer from guest at {address} after 5 s"):
            call("bank", address, companies["bank"].keys(companies["guest"]), connect_s=5)
    assert len(slept) == 4, "it retries until then"


def test_waiting_for_a_peer_raises_peer_lost_after_connect_s(companies: dict[str, Any]) -> None:
    guest, bank = companies["guest"], companies["bank"]
    endpoint = Endpoint("guest", "127.0.0.1:0", ("bank",), keys=guest.keys(bank), connect_s=0.1)
    with (
        pytest.raises(PeerLost, match=r"bank did not connect .* within 0.1 s \(connect_s\)"),
        open_links(endpoint),
    ):
        pass


def test_connected_peers_are_released_if_another_never_connects(companies: dict[str, Any]) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    ports: queue.Queue[int] = queue.Queue()
    here = Endpoint(
        "guest", "127.0.0.1:0", ("bank", "clinic"), keys=guest.keys(bank, clinic), connect_s=4
    )
    outcome: list[str] = []

    def wait_for_both() -> None:
        with pytest.raises(PeerLost, match="clinic did not connect"), open_links(here, ports.put):
            outcome.append("both connected")
        outcome.append("gave up")

    waiting = threading.Thread(target=wait_for_both)
    waiting.start()
    # A regular close, not a cancelled call: otherwise the guest's sending thread would wait for
    # messages forever and keep its process alive.
    with pytest.raises(PeerLost, match=r"was down for 1 s \(outage_s\): "):
        call("bank", f"127.0.0.1:{ports.get(timeout=600)}", bank.keys(guest))
    waiting.join(600)
    assert outcome == ["gave up"]


def test_dialing_waits_for_a_listener_that_starts_late(companies: dict[str, Any]) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    refused = threading.Event()
    outcome: list[Message] = []

    def late() -> None:
        outcome.append(call("bank", f"127.0.0.1:{port}", bank.keys(guest)))

    sleep = preflight.time.sleep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight.time, "sleep", lambda s: (refused.set(), sleep(s))[1])
        thread = threading.Thread(target=late)
        thread.start()
        assert refused.wait(600)  # the first attempt has failed
    keys = guest.keys(bank)
    admission = Admission({"bank": StreamLink("bank", deadline_s=600)}, Credentials.read(*keys))
    listener = Listener(f"127.0.0.1:{port}", admission)
    try:
        run_blocking(listener.wait(600)["bank"].send(Message(Kind.READY)))
        thread.join(600)
        assert [m.kind for m in outcome] == [Kind.READY]
    finally:
        listener.stop()


def test_an_error_names_a_port_that_is_in_use(companies: dict[str, Any]) -> None:
    keys = companies["guest"].keys(companies["bank"])
    with (
        listening(keys) as listener,
        pytest.raises(ConfigError, match=f"free port, got {address_of(listener)}"),
    ):
        Listener(address_of(listener), listener.admission)


# Files.


@pytest.mark.parametrize("which", [0, 1, 2], ids=["certificate", "key", "authority"])
@pytest.mark.parametrize(
    "content", [None, b"", b"no PEM", "another's"], ids=["absent", "empty", "no PEM", "another's"]
)
def test_an_error_names_the_invalid_file(
    companies: dict[str, Any], tmp_path: Path, which: int, content: bytes | str | None
) -> None:
    bad = tmp_path / "bad.pem"
    certificate, key, authorities = companies["bank"].keys(companies["guest"])
    if content == "another's":
        # A key instead of a certificate, or another party's key.
        content = (companies["clinic"].key if which == 1 else key).read_bytes()
    if isinstance(content, bytes):
        bad.write_bytes(content)
    files: list[Any] = [certificate, key, authorities]
    files[which] = {"guest": bad} if which == 2 else bad
    with pytest.raises(CertificateError, match=r"expected ") as error:
        Credentials.read(*files)
    assert str(bad) in str(error.value)


def test_valid_files_are_read(companies: dict[str, Any]) -> None:
    bank, guest = companies["bank"], companies["guest"]
    credentials = Credentials.read(*bank.keys(guest))
    assert credentials.key == bank.key.read_bytes()
    assert credentials.authorities == {"guest": guest.ca.read_bytes()}


def test_private_keys_are_readable_by_their_owner_only(companies: dict[str, Any]) -> None:
    for path in companies["bank"].folder.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {p.name for p in companies["bank"].folder.iterdir()} == {
        "ca.pem", "ca.key", "bank.pem", "bank.key",
    }  # fmt: skip


@pytest.mark.parametrize("existing", ["ca.pem", "ca.key"])
def test_an_authority_is_never_replaced(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("mine")
    with pytest.raises(CertificateError, match=f"{existing} exists"):
        make_authority(tmp_path, "celu")
    assert [p.name for p in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "mine"


@pytest.mark.parametrize("existing", ["bank.pem", "bank.key"])
def test_a_partys_certificate_is_never_replaced(tmp_path: Path, existing: str) -> None:
    make_authority(tmp_path, "celu")
    (tmp_path / existing).write_text("mine")
    with pytest.raises(CertificateError, match=f"{existing} exists"):
        make_party(tmp_path, "bank")
    assert {p.name for p in tmp_path.iterdir()} == {"ca.pem", "ca.key", existing}
    assert (tmp_path / existing).read_text() == "mine"


@pytest.mark.parametrize("content", [None, "no key"], ids=["absent", "unreadable"])
def test_a_party_needs_an_authority(tmp_path: Path, content: str | None) -> None:
    if content:
        make_authority(tmp_path, "celu")
        (tmp_path / "ca.key").write_text(content)
    with pytest.raises(CertificateError, match=f"{tmp_path}: cannot read the authority"):
        make_party(tmp_path, "bank")


@pytest.mark.parametrize("name", ["", "Bank", "bänk", "a/b", "../bank", "a" * 64, "-a", "a.b"])
def test_an_invalid_party_name_is_refused(tmp_path: Path, name: str) -> None:
    make_authority(tmp_path / "certs", "celu")
    with pytest.raises(CertificateError, match="expected a party name"):
        make_party(tmp_path / "certs", name)
    assert {p.name for p in tmp_path.rglob("*")} == {"certs", "ca.pem", "ca.key"}


@pytest.mark.parametrize("name", ["", "x" * 60])
def test_an_invalid_company_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CertificateError, match="expected a company name"):
        make_authority(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_the_commands_create_what_a_party_needs(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    made = CliRunner().invoke(app, ["certs", "ca", "--dir", str(folder), "--name", "Bank AG"])
    assert made.exit_code == 0
    assert f"{folder / 'ca.pem'}: send this file" in made.output.replace("\n", " ").replace(
        "  ", " "
    )
    made = CliRunner().invoke(app, ["certs", "party", "bank", "--dir", str(folder)])
    assert made.exit_code == 0
    assert f'certificate = "{folder / "bank.pem"}"\nkey = "{folder / "bank.key"}"' in made.output
    Credentials.read(folder / "bank.pem", folder / "bank.key", {"guest": folder / "ca.pem"})


def test_an_insecure_listener_still_requires_a_name_of_the_contract() -> None:
    admission = Admission({"bank": StreamLink("bank", deadline_s=600)}, None)
    listener = Listener("127.0.0.1:0", admission)
    try:
        with (
            pytest.raises(CertificateError, match="a name not in the contract"),
            open_links(
                Endpoint("clinic", connect={"guest": Route(address_of(listener))}, deadline_s=600)
            ) as links,
        ):
            run_blocking(links["guest"].receive())
        assert_nobody_connected(listener)
    finally:
        listener.stop()


@pytest.mark.parametrize(
    ("field", "value"),
    [(b"\x03\x42\x00\x04", bytes(64)), (b"\xa0\x03\x02\x01", b"\x0a")],
    ids=["key", "version"],
)
def test_a_certificate_with_a_damaged_field_is_named(
    companies: dict[str, Any], tmp_path: Path, field: bytes, value: bytes
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    der = bytearray(ssl.PEM_cert_to_DER_cert(guest.certificate.read_text()))
    start = der.index(field) + len(field)
    der[start : start + len(value)] = value
    damaged = tmp_path / "damaged.pem"
    damaged.write_text(ssl.DER_cert_to_PEM_cert(bytes(der)))
    _, key, authorities = guest.keys(bank)
    with pytest.raises(CertificateError, match=r"damaged.pem: expected a certificate"):
        Credentials.read(damaged, key, authorities)
    with pytest.raises(CertificateError, match=r"damaged.pem: expected a certificate"):
        Credentials.read(guest.certificate, key, {"bank": damaged})


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("guest", {"valid": (-2 * HOUR, -HOUR)}, "expired at .*celu certs party guest"),
        ("guest", {"valid": (HOUR, 2 * HOUR)}, "not valid before .*clock"),
        ("branch", {}, "expected a certificate for 'guest', .* got one for 'branch'"),
    ],
)
def test_a_certificate_of_ours_that_every_peer_would_refuse_is_found_at_home(
    companies: dict[str, Any], tmp_path: Path, name: str, changes: dict[str, Any], why: str
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    odd = guest.issue(tmp_path, name, **changes)
    credentials = Credentials.read(*odd, guest.keys(bank)[2])
    with pytest.raises(CertificateError, match=why):
        credentials.check_own("guest", dt.datetime.now(dt.UTC))
    guest.issue(tmp_path, "guest")
    Credentials.read(*odd, guest.keys(bank)[2]).check_own("guest", dt.datetime.now(dt.UTC))


def test_keys_that_grpc_cannot_use_are_not_reported_as_a_port_in_use(
    companies: dict[str, Any],
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    good = Credentials.read(*guest.keys(bank))
    authority = guest.folder / "ca.pem", guest.folder / "ca.key"
    odd = replace(
        good, certificate=authority[0].read_bytes(), key=authority[1].read_bytes(), files=authority
    )
    links = {"bank": StreamLink("bank", deadline_s=1)}
    with pytest.raises(CertificateError, match="gRPC cannot listen with this certificate"):
        Listener("127.0.0.1:0", Admission(links, odd))


def test_the_files_to_name_in_place_of_an_authority_are_given_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_authority(tmp_path / "keys", "bank")
    make_party(tmp_path / "keys", "bank")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    authority = Path("../keys/ca.pem")
    folder = (tmp_path / "keys").resolve()
    with pytest.raises(CertificateError) as caught:
        Credentials.read(authority, authority.with_suffix(".key"), {})
    step = f"set keys.certificate to {folder / 'bank.pem'} and keys.key to {folder / 'bank.key'}"
    assert str(caught.value).endswith(step)
