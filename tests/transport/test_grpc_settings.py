"""What a gRPC listener promises to a client that connects: how many streams, how much on each."""

from __future__ import annotations

import socket
from typing import Any

import grpc
import pytest

from celu.config.party import MAX_DIRECT_STRIPES, MAX_STRIPES
from celu.transport.carrier import IDENTIFY_S, Admission
from celu.transport.grpc_carrier import (
    _GATEWAY_WINDOW_BYTES,
    MAX_INCOMING_CONNECTIONS,
    Listener,
)
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials

SETTINGS, MAX_STREAMS, INITIAL_WINDOW = 4, 3, 4  # of HTTP/2: a frame and two of its entries


def read_settings(port: int) -> dict[int, int]:
    """The entries of the first frame that a listener sends."""
    with (
        socket.create_connection(("127.0.0.1", port), 600) as client,
        client.makefile("rb") as file,
    ):
        client.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
        )
        header = file.read(9)
        assert header[3] == SETTINGS
        body = file.read(int.from_bytes(header[:3], "big"))
        entries = [body[at : at + 6] for at in range(0, len(body), 6)]
        return {int.from_bytes(e[:2], "big"): int.from_bytes(e[2:], "big") for e in entries}


def test_a_listener_promises_a_bounded_number_of_streams_with_bounded_windows(
    companies: dict[str, Any],
) -> None:
    guest, bank = companies["guest"], companies["bank"]
    links = {"bank": StreamLink("bank", deadline_s=600)}
    credentials = Credentials.read(*guest.keys(bank))
    listener = Listener("127.0.0.1:0", Admission(links, credentials, behind_gateway=True))
    try:
        settings = read_settings(listener.port)
    finally:
        listener.stop()
    assert settings[MAX_STREAMS] == 2 * MAX_STRIPES + 2
    assert settings.get(INITIAL_WINDOW, 65535) <= _GATEWAY_WINDOW_BYTES


def test_a_listener_limits_what_grpc_would_not(
    companies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without them gRPC waits two minutes for a handshake, and has no limit for the rest.
    given: dict[str, Any] = {}
    make_server = grpc.server

    def record(threads: Any, **arguments: Any) -> Any:
        given.update(arguments)
        return make_server(threads, **arguments)

    monkeypatch.setattr(grpc, "server", record)
    guest, bank = companies["guest"], companies["bank"]
    links = {"bank": StreamLink("bank", deadline_s=600)}
    credentials = Credentials.read(*guest.keys(bank))
    Listener("127.0.0.1:0", Admission(links, credentials, behind_gateway=True)).stop()
    options = dict(given["options"])
    for name in (
        "grpc.server_handshake_timeout_ms",
        "grpc.http2.settings_timeout",
        "grpc.max_connection_idle_ms",
    ):
        assert options[name] == 1000 * IDENTIFY_S
    assert options["grpc.max_allowed_incoming_connections"] == MAX_INCOMING_CONNECTIONS
    assert options["grpc.server.max_pending_requests"] == MAX_STRIPES
    assert options["grpc.server.max_pending_requests_hard_limit"] == MAX_STRIPES
    assert given["maximum_concurrent_rpcs"] == 2 * MAX_STRIPES + 2


def test_without_a_gateway_a_connection_has_the_streams_of_one_link() -> None:
    listener = Listener(
        "127.0.0.1:0", Admission({"bank": StreamLink("bank", deadline_s=600)}, None)
    )
    try:
        settings = read_settings(listener.port)
    finally:
        listener.stop()
    assert settings[MAX_STREAMS] == MAX_DIRECT_STRIPES
