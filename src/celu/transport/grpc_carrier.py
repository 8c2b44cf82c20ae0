"""The gRPC carrier: a connection is one synchronous bidirectional stream, or several (`stripes`).

Direct connections use mutual TLS 1.3; behind a gateway, the port is plain HTTP/2 and the parties'
TLS runs inside (`inner_tls`). A gRPC message is one piece (`wire`), which gRPC does not parse.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import unquote

# gRPC reads this once, when it is first used. It limits TLS 1.2 to a suite with pre-shared keys,
# which cannot work because there are none. The suites of TLS 1.3 are not affected, so TLS 1.3 is
# the only version that can be negotiated.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # we report its errors as our own

import grpc

from celu.config.party import MAX_DIRECT_STRIPES, MAX_STRIPES
from celu.errors import CeluError, CertificateError, ConfigError, PeerLost, ProtocolError
from celu.text import printable
from celu.threads import DaemonThreads
from celu.transport import carrier
from celu.transport.carrier import IDENTIFY_S, NAME_KEY, Admission, MakeConnection, Route
from celu.transport.connection import Connection, reason_of
from celu.transport.handshakes import HandshakeWatch, unexplained
from celu.transport.inner_tls import MAX_ENCRYPTED_BYTES, InnerTls
from celu.transport.stripes import (
    RoundRobin,
    StreamCount,
    Stripe,
    StripeGroups,
    gather,
    piece_bytes,
)
from celu.transport.tls import Credentials, read_authority

_SERVICE = "celu.Link"
_METHOD = "Exchange"
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_ENCRYPTED_BYTES),
    ("grpc.max_send_message_length", MAX_ENCRYPTED_BYTES),
    ("grpc.so_reuseport", 0),  # a second party on the same port is a mistake: let it fail
]
# Disconnects clients that do not complete the TLS handshake, do not acknowledge our settings (gRPC
# does not apply its limit on headers before) or open no stream. A peer has a stream open for the
# whole run.
_SERVER_TIMEOUTS = [
    ("grpc.server_handshake_timeout_ms", int(IDENTIFY_S * 1000)),
    ("grpc.http2.settings_timeout", int(IDENTIFY_S * 1000)),
    ("grpc.max_connection_idle_ms", int(IDENTIFY_S * 1000)),
]
# What each stream may buffer while it is not read. By default gRPC adapts it to the link, without a
# limit. gRPC grants more when half of it is used: 2 MiB halve the throughput of a link of 300 Mb/s
# with a round trip of 50 ms, 3 MiB cost 5 %. Longer or faster links need `connections`. A gateway
# is near and opens a connection for each stream, so less is enough.
_WINDOW_BYTES, _GATEWAY_WINDOW_BYTES = 3 * 1024 * 1024, 128 * 1024
MAX_INCOMING_CONNECTIONS = 256  # of all clients, also of those that are not authenticated
_MAX_HEADERS = 100  # of a stream: ours, and those that gateways add


def _server_limits(
    per_connection: int, max_pending: int, window_bytes: int
) -> list[tuple[str, int]]:
    """Limits on what clients can make gRPC buffer: a stream that is not read fills its window."""
    return [
        ("grpc.max_concurrent_streams", per_connection),
        ("grpc.server.max_pending_requests", max_pending),
        ("grpc.server.max_pending_requests_hard_limit", max_pending),
        ("grpc.max_allowed_incoming_connections", MAX_INCOMING_CONNECTIONS),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", window_bytes),
    ]


@functools.cache
def _pin_thread_pool() -> Any:
    """Keep gRPC's thread pool alive until the process exits.

    gRPC shuts its pool down, on its own threads, when no channel is open: for a party that dials,
    after every attempt. That shutdown has a race that occasionally crashes the process. A channel
    that is never used and never closed prevents it.
    """
    return grpc.insecure_channel("localhost:0")


class Listener(carrier.Listener):
    """Accepts peers on one port."""

    def __init__(self, address: str, admission: Admission) -> None:
        super().__init__(admission)
        _pin_thread_pool()
        self._max_stripes = MAX_STRIPES if admission.behind_gateway else MAX_DIRECT_STRIPES
        self._groups = StripeGroups(max_waiting=self._max_stripes)
        # A peer may have a second connection that replaces the first.
        self._streams = StreamCount(2 * self._max_stripes)
        # Two streams are for clients that are rejected. Each occupies a thread, which starts on
        # demand.
        max_streams = len(admission.peers) * 2 * self._max_stripes + 2
        max_pending = len(admission.peers) * self._max_stripes  # all may connect at the same time
        window = _GATEWAY_WINDOW_BYTES if admission.behind_gateway else _WINDOW_BYTES
        # A gateway may carry all streams on one connection; without one, each is of one peer.
        per_connection = max_streams if admission.behind_gateway else self._max_stripes
        limits = _server_limits(per_connection, max_pending, window)
        self._watch = HandshakeWatch(self._report_handshake)
        self._threads = DaemonThreads(max_streams, "celu-listen")
        self._server: Any = grpc.server(
            self._threads,
            options=[*_OPTIONS, *_SERVER_TIMEOUTS, *limits],
            maximum_concurrent_rpcs=max_streams,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),)
        )
        try:
            self.port = self._bind(address)
        except RuntimeError as error:
            credentials = admission.credentials
            if credentials is not None and _is_free(address):  # so it is not the port
                raise CertificateError(
                    f"{credentials.files[0]}, {credentials.files[1]}: gRPC cannot listen with this "
                    'certificate and key; make others with "celu certs party NAME"'
                ) from error
            raise ConfigError(
                f"listen: expected an address of this machine with a free port, got {address}"
            ) from error
        self._server.start()

    def _bind(self, address: str) -> int:
        credentials = self.admission.credentials
        if credentials is None or self.admission.behind_gateway:
            return int(self._server.add_insecure_port(address))
        configuration = grpc.ssl_server_certificate_configuration(
            [(credentials.key, credentials.certificate)],
            root_certificates=b"\n".join(credentials.authorities.values()),
        )
        # gRPC calls the function whenever a client connects; None: the certificate has not changed.
        server_credentials = grpc.dynamic_ssl_server_credentials(
            configuration, self._watch.began, require_client_authentication=True
        )
        return int(self._server.add_secure_port(address, server_credentials))

    def _report_handshake(self) -> None:
        credentials = self.admission.credentials
        if credentials is not None and not self.admission.is_complete:
            self.admission.note_rejection(unexplained(self.admission.peers, credentials.files[0]))

    def stop(self) -> None:
        """See `carrier.Listener`."""
        self._watch.stop()
        self._groups.stop(PeerLost("no longer listening"))
        self.admission.stop()
        self._server.stop(grace=1.0).wait(2.0)
        self._threads.shutdown(wait=False)  # gRPC does not end them

    def _exchange(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        def connect(streams: list[Iterator[bytes]]) -> Connection:
            connection = self.admission.admit(name)
            connection.piece_bytes = piece_bytes(len(streams))
            connection.explain_error = partial(_explain_ended, name)
            connection.cancel = context.cancel
            _start_receiving(connection, gather(streams))
            return connection

        self._watch.opened_stream()
        try:
            metadata = _headers(context)
            name = self.admission.authenticate(metadata.get(NAME_KEY, ""), _certificate(context))
            stripe = Stripe.read(metadata, self._max_stripes)
            with self._streams.added(name):
                connection, pieces = self._groups.add_stream(name, stripe, requests, connect)
                yield from pieces
            if not connection.protocol.greeted and connection.problem is not None:
                raise connection.problem  # why the client was rejected
        except CeluError as error:
            self.admission.note_rejection(error, _address(context))
            context.abort(_status(error), str(error))


def _is_free(address: str) -> bool:
    """Whether this process can listen at an address."""
    host, port = address.rsplit(":", 1)
    try:
        for family, _, _, _, where in socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            socket.create_server(where, family=family).close()
    except OSError:
        return False
    return True


def _address(context: Any) -> str:
    """Where a client connects from, without its port."""
    return re.sub(r"^ipv[46]:(.*):\d+$", r"\1", unquote(context.peer()))


def _headers(context: Any) -> dict[str, str]:
    """A client's headers; raises ProtocolError for too many.

    gRPC limits their size, but not for a client that has not acknowledged its settings.
    """
    metadata = context.invocation_metadata()
    if len(metadata) > _MAX_HEADERS:
        raise ProtocolError(f"expected at most {_MAX_HEADERS} headers, got {len(metadata)}")
    return dict(metadata)


def _status(error: CeluError) -> grpc.StatusCode:
    """The status for a rejected client, which `_explain` converts back to an error."""
    if isinstance(error, CertificateError):
        return grpc.StatusCode.PERMISSION_DENIED
    if isinstance(error, PeerLost):  # it may retry
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.ABORTED


def _certificate(context: Any) -> bytes | None:
    """The client's certificate (PEM), None without TLS; raises CertificateError for older TLS."""
    auth = context.auth_context()
    if auth.get("ssl_tls_version", [b"TLSv1.3"]) != [b"TLSv1.3"]:
        raise CertificateError("a client used a TLS version below 1.3")
    return next(iter(auth.get("x509_pem_cert", [])), None)


class OutgoingConnection:
    """One connection to a peer that listens, over one stream or several."""

    def __init__(
        self,
        route: Route,
        name: str,
        peer: str,
        credentials: Credentials | None,
        make_connection: MakeConnection,
    ) -> None:
        self.connection = connection = make_connection()
        _pin_thread_pool()
        self._channels = [_channel(route, peer, credentials) for _ in range(route.connections)]
        count = route.streams * route.connections
        connection.explain_error = lambda error: _explain(error, peer, route.address)
        connection.piece_bytes = piece_bytes(count)
        if route.gateway is not None and credentials is not None:
            connection.inner_tls = InnerTls(credentials, peer)
        outgoing, token = RoundRobin(connection.outgoing_pieces(), count), secrets.token_hex(16)
        calls = []
        for index in range(count):
            channel = self._channels[index % route.connections]
            metadata = ((NAME_KEY, name), *Stripe(index, count, token).metadata())
            call = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")(
                outgoing.pieces_for(index), metadata=metadata, wait_for_ready=True
            )
            calls.append(call)
        # Set last: no stream can be opened on a closed channel.
        connection.cancel = self.stop
        if connection.problem is not None:
            self.stop()
        _start_receiving(connection, gather(calls))

    def stop(self) -> None:
        """See `carrier.OutgoingConnection`."""
        for channel in self._channels:
            channel.close()


def _channel(route: Route, peer: str, credentials: Credentials | None) -> Any:
    options: list[tuple[str, Any]] = [*_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    gateway = route.gateway
    if credentials is None or (gateway is not None and gateway.ca is None):
        return grpc.insecure_channel(route.address, options=options)
    if gateway is not None:
        assert gateway.ca is not None
        name = gateway.name
        channel_credentials = grpc.ssl_channel_credentials(read_authority(gateway.ca))
    else:
        name = peer
        channel_credentials = grpc.ssl_channel_credentials(
            credentials.authorities[peer], credentials.key, credentials.certificate
        )
    options.append(("grpc.ssl_target_name_override", name))
    return grpc.secure_channel(route.address, channel_credentials, options=options)


def _start_receiving(connection: Connection, pieces: Iterator[bytes]) -> None:
    threading.Thread(
        target=connection.receive_pieces,
        args=(pieces,),
        name=f"from-{connection.peer}",
        daemon=True,
    ).start()


def _explain_ended(peer: str, error: Exception) -> CeluError:
    """The error of a client's stream; gRPC has no text for one that ended without a status."""
    reason = reason_of(error)
    if isinstance(error, grpc.RpcError) and not str(error):
        reason = "its connection was closed, or its process ended"
    return PeerLost(f"the link to {peer} broke: {reason}")


def _explain(error: Exception, peer: str, address: str) -> CeluError:
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        code, details = error.code(), printable(error.details() or "")
        if code == grpc.StatusCode.PERMISSION_DENIED:
            return CertificateError(f"{peer} at {address} rejected us: {details}")
        if code == grpc.StatusCode.ABORTED:
            # Without the address: a ProtocolError may be reported to other peers.
            return ProtocolError(f"{peer} rejected us: {details}")
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return ConfigError(
                f"{peer} at {address} has no service at /{_SERVICE}/: {details}; "
                "does its gateway forward that path?"
            )
        reason = details or code.name.lower().replace("_", " ")
        return PeerLost(f"the link to {peer} at {address} broke: {reason}")
    return PeerLost(f"the link to {peer} at {address} broke: {reason_of(error)}")
