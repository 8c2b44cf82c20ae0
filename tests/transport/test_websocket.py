"""Strangers behind a gateway: they upgrade to a WebSocket under a peer's name and prove nothing."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from websockets.utils import accept_key

from bench.websocket_flood import PING, upgrade
from celu.errors import CeluError, PeerLost
from celu.transport import inner_tls, websocket_carrier, websocket_clients, websocket_socket
from celu.transport.carrier import Admission, Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.inner_tls import InnerTls
from celu.transport.preflight import Gateway
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials
from celu.transport.websocket_carrier import Listener, OutgoingConnection

DEADLINE_S = 600.0  # generous: what waits forever never ends
UPGRADED = (
    "HTTP/1.1 101 Fine\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Accept: {accept}\r\n\r\n"
)
MUCH = 64 << 20  # bytes; far above what the kernel buffers of a connection hold


@contextmanager
def listening(companies: dict[str, Any], *, behind_gateway: bool = True) -> Iterator[Listener]:
    guest, bank = companies["guest"], companies["bank"]
    links = {"bank": StreamLink("bank", deadline_s=600)}
    credentials = Credentials.read(*guest.keys(bank))
    admission = Admission(links, credentials, behind_gateway=behind_gateway)
    listener = Listener("127.0.0.1:0", admission)
    try:
        yield listener
    finally:
        listener.stop()


def stranger_at(listener: Listener) -> socket.socket:
    """A WebSocket of a stranger that claims a name and reads no further than the answer."""
    return upgrade(listener.port, "bank", timeout_s=600)


def host_of(companies: dict[str, Any], listener: Listener) -> Endpoint:
    """The peer whose name the strangers claim."""
    return Endpoint(
        "bank",
        connect={
            "guest": Route(
                f"127.0.0.1:{listener.port}",
                gateway=Gateway("localhost") if listener.admission.behind_gateway else None,
            ),
        },
        keys=companies["bank"].keys(companies["guest"]),
        carrier="websocket",
        connect_s=DEADLINE_S,
    )


def wait_until_disconnected(stranger: socket.socket) -> None:
    try:
        while stranger.recv(65536):
            continue
    except ConnectionError:
        pass


def client_of(listener: Listener) -> Any:
    """The listener's end of its only client's WebSocket."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not (clients := list(listener._servers[0].connections)):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    return clients[0]


def fill_buffers(ours: Any, theirs: socket.socket, *, masked: bool = True) -> None:
    """Send PINGs from the other end until our answers fill its buffers and then ours."""
    ping = PING if masked else b"\x89\x7d" + bytes(125)  # a server's are not masked
    while not ours.paused:
        theirs.sendall(ping * 100)


def wait_until_closing(client: Any) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    while not client.transport.is_closing() and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert client.transport.is_closing() and client.transport.get_write_buffer_size() == 0


def accept_websocket(server: socket.socket) -> socket.socket:
    """A listener's end of a WebSocket that reads no further than the request."""
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client, _ = server.accept()
    client.settimeout(DEADLINE_S)
    key = re.search(r"Sec-WebSocket-Key: (\S+)", client.recv(65536).decode("ascii"))
    assert key is not None
    answer = UPGRADED.replace("{accept}", accept_key(key[1]))
    client.sendall(answer.encode("ascii"))
    return client


def test_a_client_that_sends_pings_and_reads_nothing_is_disconnected(
    companies: dict[str, Any],
) -> None:
    with listening(companies) as listener, stranger_at(listener) as stranger:
        sent, pings = 0, PING * 500
        with pytest.raises(ConnectionError):
            while sent < MUCH:
                sent += stranger.send(pings)


def test_clients_that_send_pings_and_leave_write_nothing_to_the_log(
    companies: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with listening(companies) as listener:
        for _ in range(20):
            with stranger_at(listener) as stranger, suppress(ConnectionError):
                stranger.sendall(PING * 500)  # the answers are unread: closing resets the rest
        deadline = time.monotonic() + 600
        while listener._clients and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not listener._clients
    assert [record.getMessage() for record in caplog.records] == []


def test_a_client_that_proves_no_name_is_disconnected(
    companies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_tls, "HANDSHAKE_S", 0.2)
    with listening(companies) as listener, stranger_at(listener) as stranger:
        wait_until_disconnected(stranger)


def test_a_client_that_does_not_read_cannot_delay_its_disconnection(
    companies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_tls, "HANDSHAKE_S", 5.0)
    monkeypatch.setattr(websocket_socket, "MAX_UNREAD_PINGS", 1 << 30)
    with listening(companies) as listener, stranger_at(listener) as stranger:
        client = client_of(listener)
        with suppress(OSError):  # on a slow machine it is disconnected before its buffers are full
            fill_buffers(client, stranger)
        wait_until_closing(client)


def test_a_client_that_does_not_read_our_handshake_is_disconnected(
    companies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = InnerTls(Credentials.read(*companies["bank"].keys(companies["guest"])), "guest")
    flight = next(hello.handshake_flights())
    frame = b"\x82\xfe" + len(flight).to_bytes(2, "big") + bytes(4) + flight  # masked with zeros
    monkeypatch.setattr(inner_tls, "HANDSHAKE_S", 5.0)
    monkeypatch.setattr(websocket_socket, "MAX_UNREAD_PINGS", 1 << 30)
    with listening(companies) as listener, stranger_at(listener) as stranger:
        client = client_of(listener)
        with suppress(OSError):  # on a slow machine it is disconnected before its buffers are full
            fill_buffers(client, stranger)
            stranger.sendall(frame)  # our answer waits for the client to read, without a limit
        wait_until_closing(client)


def test_closing_does_not_wait_for_a_listener_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_socket, "MAX_UNREAD_PINGS", 1 << 30)
    # Else the next PING of our own would end what waits.
    monkeypatch.setitem(websocket_carrier._LIMITS, "ping_interval", None)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(accept_websocket, server)
        route = Route(f"127.0.0.1:{server.getsockname()[1]}")
        link = StreamLink("guest", deadline_s=600)
        outgoing = OutgoingConnection(
            route, "bank", "guest", None, lambda: link.new_connection(dials=True)
        )
        with accepted.result(600) as hostile:
            fill_buffers(outgoing._socket, hostile, masked=False)
            stopping = threading.Thread(target=outgoing.stop, daemon=True)
            stopping.start()
            stopping.join(DEADLINE_S)
            assert not stopping.is_alive()


def test_a_peer_connects_among_clients_that_claim_its_name(
    companies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_tls, "HANDSHAKE_S", 2 * DEADLINE_S)  # they do not leave by themselves
    with listening(companies) as listener, ExitStack() as stack:
        strangers = [stack.enter_context(stranger_at(listener)) for _ in range(20)]
        stack.enter_context(open_links(host_of(companies, listener)))
        assert listener.wait(DEADLINE_S)["bank"].is_over is False
        for stranger in strangers[:12]:
            wait_until_disconnected(stranger)


@pytest.mark.parametrize("behind_gateway", [True, False], ids=["behind a gateway", "direct"])
def test_idle_connections_are_bounded_in_number_and_a_peer_connects_among_them(
    companies: dict[str, Any], monkeypatch: pytest.MonkeyPatch, behind_gateway: bool
) -> None:
    monkeypatch.setattr(websocket_clients, "MAX_CLIENTS", 20)
    monkeypatch.setitem(websocket_carrier._LIMITS, "open_timeout", 1200.0)
    with listening(companies, behind_gateway=behind_gateway) as listener, ExitStack() as stack:
        address = ("127.0.0.1", listener.port)
        idle = [stack.enter_context(socket.create_connection(address, 600)) for _ in range(60)]
        for oldest in idle[:40]:
            wait_until_disconnected(oldest)
        stack.enter_context(open_links(host_of(companies, listener)))
        assert listener.wait(600)["bank"].is_over is False
        assert len(listener._clients) <= 20


def test_a_client_that_has_to_make_room_may_try_again(companies: dict[str, Any]) -> None:
    with listening(companies) as listener:
        claims = [listener.admission.admit("bank") for _ in range(9)]
        assert isinstance(claims[0].problem, PeerLost)
        assert [claim.problem for claim in claims[1:]] == [None] * 8


ESCAPE = "\x1b]0;title\x07\x1b[2J\nok"  # sets a terminal's title, clears its screen, adds a line
CLOSE_CODES = {"a close reason": 1011, "a close reason of a rejection": 1008}
ANSWERS = {
    # The websockets package refuses control characters in headers.
    "a long header": f"HTTP/1.1 101 Fine\r\nUpgrade: {'x' * 5000}\r\nConnection: Upgrade\r\n\r\n",
    "a rejection": f"HTTP/1.1 403 No\r\nContent-Length: {len(ESCAPE)}\r\n\r\n{ESCAPE}",
    **dict.fromkeys(CLOSE_CODES, UPGRADED),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_text_of_the_other_side_is_short_and_printable_in_errors(what: str) -> None:
    def answer_one() -> None:
        client, _ = server.accept()
        with client:
            key = re.search(r"Sec-WebSocket-Key: (\S+)", client.recv(65536).decode("ascii"))
            assert key is not None
            client.sendall(ANSWERS[what].replace("{accept}", accept_key(key[1])).encode("ascii"))
            if code := CLOSE_CODES.get(what):
                reason = code.to_bytes(2, "big") + ESCAPE.encode("ascii")
                client.sendall(b"\x88" + bytes([len(reason)]) + reason)
            client.recv(1)

    link = StreamLink("guest", deadline_s=600)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_one)
        thread.start()
        route = Route(f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(CeluError) as caught:
            outgoing = OutgoingConnection(
                route, "bank", "guest", None, lambda: link.new_connection(dials=True)
            )
            try:
                link.wait_until_greeted(outgoing.connection, 600)
            finally:
                outgoing.stop()
        thread.join(600)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1200
