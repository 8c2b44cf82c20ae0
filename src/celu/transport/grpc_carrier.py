"""Links over gRPC: synchronous bidirectional streams, one to each peer or several that share.

Direct connections are under mutual TLS 1.3; behind a gateway, the port speaks plain HTTP/2 and the
parties' TLS runs inside. Messages are byte strings of our own (`wire`); gRPC neither parses nor
limits them beyond the size of a piece.
"""

from __future__ import annotations

import functools
import os
import secrets
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

# Read by gRPC once, when it is first used. Its TLS 1.2 suites are narrowed to one for pre-shared
# keys, of which there are none, so no certificate can use it. That leaves TLS 1.3 (whose suites
# this does not touch) as the only version that can be negotiated.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors reach the user through ours

import grpc

from celu.config.party import MAX_STRIPES
from celu.errors import CeluError, CertificateError, ConfigError, PeerLost, ProtocolError
from celu.transport import carrier
from celu.transport.carrier import NAME_KEY, OPEN_S, Admission, MakeConnection, Route
from celu.transport.inner_tls import SEALED_BYTES, InnerTls
from celu.transport.message import printable
from celu.transport.stream import Connection
from celu.transport.stripes import Bundles, Deal, Stripe, gather, piece_bytes
from celu.transport.tls import Credentials, read_authority

_SERVICE = "celu.Link"
_METHOD = "Exchange"
_OPTIONS = [
    ("grpc.max_receive_message_length", SEALED_BYTES),
    ("grpc.max_send_message_length", SEALED_BYTES),
    ("grpc.so_reuseport", 0),  # a second party on the same port is a mistake: let it fail
]
# Who connects and says nothing, or not who it is, is let go after a while; so is a connection
# without a stream. A peer's has one for the whole run.
_AT_THE_DOOR = [
    ("grpc.server_handshake_timeout_ms", int(OPEN_S * 1000)),
    ("grpc.max_connection_idle_ms", int(OPEN_S * 1000)),
]
# What gRPC may take in of a stream before it is asked for. By itself it finds the size that the
# line needs, up to 4 MiB, times the number of stripes. A gateway is near, so that less does, and
# it has a connection for each stream.
_NEAR = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 256 * 1024)]


@functools.cache
def _keep_loaded() -> Any:
    """Have gRPC's threads last as long as the process, once there are any.

    gRPC takes its thread pool down, on threads of its own, when nothing uses it any more: for a
    party that connects, after every attempt. Now and then one of them meets what is gone already,
    and the process dies of it. A channel that is never used, nor closed, keeps the pool.
    """
    return grpc.insecure_channel("localhost:0")


class Listener(carrier.Listener):
    """Waits for peers on one port."""

    def __init__(self, address: str, arrivals: Admission) -> None:
        super().__init__(arrivals)
        _keep_loaded()
        self._bundles = Bundles()
        # A stream that was let in keeps a thread while it lasts, and one connection may replace
        # another; two more turn away others. Threads are made when they are needed: bounds.
        threads = 2 * len(arrivals.peers) * MAX_STRIPES + 2
        self._server: Any = grpc.server(
            futures.ThreadPoolExecutor(threads, thread_name_prefix="celu-listen"),
            options=[*_OPTIONS, *_AT_THE_DOOR, *(_NEAR if arrivals.behind_gateway else [])],
        )
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),)
        )
        try:
            self.port = self._bind(address)
        except RuntimeError as error:
            raise ConfigError(
                f"listen: expected an address of this machine with a free port, got {address}"
            ) from error
        self._server.start()

    def _bind(self, address: str) -> int:
        credentials = self.arrivals.credentials
        if credentials is None or self.arrivals.behind_gateway:
            return int(self._server.add_insecure_port(address))
        credentials = grpc.ssl_server_credentials(
            [(credentials.key, credentials.certificate)],
            root_certificates=b"\n".join(credentials.authorities.values()),
            require_client_auth=True,
        )
        return int(self._server.add_secure_port(address, credentials))

    def stop(self) -> None:
        """See `carrier.Listener`."""
        self._bundles.stop(PeerLost("no longer listening"))
        self.arrivals.stop()
        self._server.stop(grace=1.0).wait(2.0)

    def _exchange(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        def begin(streams: list[Iterator[bytes]]) -> Connection:
            connection = self.arrivals.admit(name)
            connection.piece_bytes = piece_bytes(len(streams))
            connection.cancel = context.cancel
            _pump(connection, gather(streams))
            return connection

        try:
            said = dict(context.invocation_metadata())
            name = self.arrivals.caller(said.get(NAME_KEY, ""), _certificate(context))
            connection, pieces = self._bundles.join(name, Stripe.read(said), requests, begin)
            yield from pieces
            if not connection.protocol.greeted and connection.problem is not None:
                raise connection.problem  # why the caller was not let in
        except CeluError as error:
            self.arrivals.turn_away(str(error))
            context.abort(_status(error), str(error))


def _status(error: CeluError) -> grpc.StatusCode:
    """What a caller makes of being turned away: see `_explain`."""
    if isinstance(error, CertificateError):
        return grpc.StatusCode.PERMISSION_DENIED
    if isinstance(error, PeerLost):  # not now, but perhaps later
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.ABORTED


def _certificate(context: Any) -> bytes | None:
    """The caller's certificate (PEM), of a connection that has one; raises CertificateError."""
    auth = context.auth_context()
    if auth.get("ssl_tls_version", [b"TLSv1.3"]) != [b"TLSv1.3"]:
        raise CertificateError("a caller used a TLS version below 1.3")
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
        _keep_loaded()
        self._channels = [_channel(route, peer, credentials) for _ in range(route.connections)]
        count = route.streams * route.connections
        connection.explain = lambda error: _explain(error, peer, route.address)
        connection.piece_bytes = piece_bytes(count)
        if route.gateway is not None and credentials is not None:
            connection.inner_tls = InnerTls(credentials, peer)
        deal, token = Deal(connection.outgoing(), count), secrets.token_hex(16)
        calls = []
        for index in range(count):
            channel = self._channels[index % route.connections]
            metadata = ((NAME_KEY, name), *Stripe(index, count, token).metadata())
            call = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")(
                deal.stripe(index), metadata=metadata, wait_for_ready=True
            )
            calls.append(call)
        connection.cancel = (
            self.stop
        )  # only now: a stream cannot be opened on a channel that is closed
        if connection.problem is not None:
            self.stop()
        _pump(connection, gather(calls))

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
        name, credentials = gateway.name, grpc.ssl_channel_credentials(read_authority(gateway.ca))
    else:
        name = peer
        credentials = grpc.ssl_channel_credentials(
            credentials.authorities[peer], credentials.key, credentials.certificate
        )
    options.append(("grpc.ssl_target_name_override", name))
    return grpc.secure_channel(route.address, credentials, options=options)


def _pump(connection: Connection, pieces: Iterator[bytes]) -> None:
    threading.Thread(
        target=connection.pump, args=(pieces,), name=f"from-{connection.peer}", daemon=True
    ).start()


def _explain(error: Exception, peer: str, address: str) -> CeluError:
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        code, details = error.code(), printable(error.details() or "")
        if code == grpc.StatusCode.PERMISSION_DENIED:
            return CertificateError(f"{peer} at {address} turned us away: {details}")
        if code == grpc.StatusCode.ABORTED:
            # Without the address: other peers may read a ProtocolError.
            return ProtocolError(f"{peer} turned us away: {details}")
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return ConfigError(
                f"expected a way to {peer} at {address}, got none for /{_SERVICE}/: {details}; "
                "does its gateway pass that on?"
            )
        return PeerLost(f"the link to {peer} at {address} broke: {details}")
    return PeerLost(f"the link to {peer} at {address} broke: {error}")
