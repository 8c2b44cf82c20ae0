"""The side that listens says at once who could not connect, and why: real TLS, both carriers."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celu.errors import CertificateError, ConfigError, PeerLost
from celu.events import ClientRejected, Event, LinkDown
from celu.transport import carrier, handshakes, stream
from celu.transport.carrier import Admission, Route
from celu.transport.connect import Dialer, Endpoint, find_carrier, open_links
from celu.transport.handshakes import HandshakeWatch
from celu.transport.stream import StreamLink
from transport.bad_certificates import Keys

both_carriers = pytest.mark.parametrize("kind", ["grpc", "websocket"])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CLOSE_S", 0.5)
    monkeypatch.setattr(handshakes, "GRACE_S", 0.3)


@contextmanager
def waiting_guest(keys: Keys | None, kind: str) -> Iterator[tuple[int, queue.Queue[Event]]]:
    """A guest that waits for the bank, its port, and its events."""
    events: queue.Queue[Event] = queue.Queue()
    ports: queue.Queue[int] = queue.Queue()
    done = threading.Event()
    endpoint = Endpoint(
        "guest",
        "127.0.0.1:0",
        ("bank",),
        keys=keys,
        carrier=kind,
        connect_s=600,
        on_event=events.put,
    )

    def wait() -> None:
        with pytest.raises((PeerLost, CertificateError)), open_links(endpoint, port):
            done.wait(600)
            raise PeerLost("the test ended")

    def port(number: int) -> None:
        ports.put(number)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield ports.get(timeout=600), events
    finally:
        done.set()


def dial(keys: Keys | None, port: int, kind: str) -> None:
    endpoint = Endpoint(
        "bank",
        connect={"guest": Route(f"127.0.0.1:{port}")},
        keys=keys,
        carrier=kind,
        connect_s=600,
        deadline_s=600,
    )
    with open_links(endpoint):
        pass


@both_carriers
def test_a_listener_with_the_wrong_authority_says_so_while_it_waits(
    companies: dict[str, Any], kind: str
) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    wrong: Keys = (guest.certificate, guest.key, {"bank": clinic.ca})
    with waiting_guest(wrong, kind) as (port, events):
        with pytest.raises(CertificateError, match="rejected our certificate"):
            dial(bank.keys(guest), port, kind)
        event = events.get(timeout=600)
    assert isinstance(event, ClientRejected)
    assert (
        "peers.bank.ca the ca.pem" in event.reason or "signed by the authority in" in event.reason
    )
    assert ("a client's certificate was refused" in event.reason) == (kind == "websocket")


@both_carriers
def test_a_listener_whose_certificate_a_client_refuses_says_so_while_it_waits(
    companies: dict[str, Any], kind: str
) -> None:
    guest, bank, clinic = companies["guest"], companies["bank"], companies["clinic"]
    with waiting_guest(guest.keys(bank), kind) as (port, events):
        with pytest.raises(CertificateError, match="not acceptable"):
            dial((bank.certificate, bank.key, {"guest": clinic.ca}), port, kind)
        event = events.get(timeout=600)
    assert isinstance(event, ClientRejected)
    assert str(guest.certificate) in event.reason and "our ca.pem" in event.reason
    assert ("a client refused our certificate" in event.reason) == (kind == "websocket")


@both_carriers
def test_a_client_with_another_partys_certificate_is_reported_with_its_address(
    companies: dict[str, Any], tmp_path: Any, kind: str
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    other: Keys = (*bank.issue(tmp_path, "branch"), bank.keys(guest)[2])
    with waiting_guest(guest.keys(bank), kind) as (port, events):
        with pytest.raises(CertificateError, match="for none of the expected parties"):
            dial(other, port, kind)
        event = events.get(timeout=600)
    assert isinstance(event, ClientRejected)
    assert event.address == "127.0.0.1" and "none of the expected parties" in event.reason


@both_carriers
def test_a_peer_that_connects_is_no_rejection(companies: dict[str, Any], kind: str) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with waiting_guest(guest.keys(bank), kind) as (port, events):
        dial(bank.keys(guest), port, kind)
        with pytest.raises(queue.Empty):
            while not isinstance(events.get(timeout=2 * handshakes.GRACE_S), ClientRejected):
                pass


def test_a_crowd_of_strangers_is_reported_a_bounded_number_of_times() -> None:
    events: list[Event] = []
    links = {"bank": StreamLink("bank", deadline_s=1)}
    admission = Admission(links, None, on_event=events.append)
    for number in range(100):
        admission.note_rejection(ConfigError(f"stranger {number}"), "127.0.0.1")
    admission.note_rejection(PeerLost("it may try again"))
    assert len(events) == carrier._MAX_REPORTED
    admission.stop()


def test_a_handshake_is_reported_only_if_no_stream_follows() -> None:
    reported = threading.Event()
    watch = HandshakeWatch(reported.set)
    watch.began()
    watch.opened_stream()
    assert not reported.wait(3 * handshakes.GRACE_S)
    watch.began()
    assert reported.wait(600)
    reported.clear()
    watch.began()
    watch.stop()
    assert not reported.wait(3 * handshakes.GRACE_S)


def test_a_connection_without_tls_is_told_from_nobody(companies: dict[str, Any]) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with (
        waiting_guest(guest.keys(bank), "grpc") as (port, events),
        socket.create_connection(("127.0.0.1", port)),
    ):
        event = events.get(timeout=600)
    assert isinstance(event, ClientRejected) and "no TLS handshake succeeded" in event.reason


CARRIERS = ("grpc", "websocket")


@pytest.mark.parametrize("theirs", CARRIERS)
@pytest.mark.parametrize("ours", CARRIERS)
def test_a_party_without_tls_is_told_at_once_that_its_peer_uses_it(
    companies: dict[str, Any], ours: str, theirs: str
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with waiting_guest(guest.keys(bank), theirs) as (port, events):
        with pytest.raises(
            ConfigError, match=r"got insecure = true here, and guest at .* uses TLS"
        ):
            dial(None, port, ours)
        event = events.get(timeout=600)
    assert isinstance(event, ClientRejected)
    assert "insecure" in event.reason and "carrier" in event.reason


@pytest.mark.parametrize("theirs", CARRIERS)
@pytest.mark.parametrize("ours", CARRIERS)
def test_a_party_with_tls_is_told_at_once_that_its_peer_is_insecure(
    companies: dict[str, Any], ours: str, theirs: str
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    with (
        waiting_guest(None, theirs) as (port, _),
        pytest.raises(CertificateError, match=r"if its party.toml has insecure = true, remove it"),
    ):
        dial(bank.keys(guest), port, ours)


@pytest.mark.parametrize(("ours", "theirs"), [CARRIERS, CARRIERS[::-1]])
def test_carriers_that_differ_are_told_at_once_without_tls_too(ours: str, theirs: str) -> None:
    expected = f'carrier: expected the same at all parties, got "{ours}" here and "{theirs}" at'
    with waiting_guest(None, theirs) as (port, _), pytest.raises(ConfigError, match=expected):
        dial(None, port, ours)


def test_a_listener_without_tls_that_nobody_dials_says_what_to_compare() -> None:
    endpoint = Endpoint("guest", "127.0.0.1:0", ("bank",), connect_s=0.1)
    with (
        pytest.raises(PeerLost, match=r"are insecure and carrier the same\?"),
        open_links(endpoint),
    ):
        pass


def test_a_client_of_grpc_that_is_gone_is_told_in_words() -> None:
    events: queue.Queue[Event] = queue.Queue()
    ports: queue.Queue[int] = queue.Queue()
    guest = Endpoint("guest", "127.0.0.1:0", ("bank",), connect_s=600, on_event=events.put)
    done = threading.Event()

    def wait() -> None:
        with open_links(guest, ports.put):
            done.wait(600)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    port = ports.get(timeout=600)
    link = StreamLink("guest", deadline_s=600)
    route = Route(f"127.0.0.1:{port}")
    dialer = Dialer(find_carrier("grpc"), route, "bank", None, link)
    dialer.dial()
    dialer.stop()  # as if its process were killed
    while not isinstance(event := events.get(timeout=600), LinkDown):
        pass
    assert event.reason.endswith("its connection was closed, or its process ended")
    done.set()
    thread.join(600)
