"""The WebSocket carrier, for gateways without HTTP/2: one WebSocket per connection.

Direct connections use mutual TLS 1.3; behind a gateway, the port is plain HTTP and the parties' TLS
runs inside (`inner_tls`). The threads that move pieces are in `websocket_threads`.
"""

from __future__ import annotations

import asyncio
import logging
import socket as sockets
import ssl
from typing import Any

from celu.errors import CeluError, CertificateError, ConfigError, PeerLost
from celu.text import printable
from celu.transport import carrier, inner_tls
from celu.transport.carrier import IDENTIFY_S, NAME_KEY, Admission, MakeConnection, Route
from celu.transport.connection import reason_of
from celu.transport.handshakes import report_handshakes
from celu.transport.inner_tls import MAX_ENCRYPTED_BYTES, InnerTls
from celu.transport.preflight import ALPN, PREFLIGHT_PATH
from celu.transport.tls import Credentials, client_context, read_authority, server_context
from celu.transport.websocket_clients import BACKLOG, Clients, ListeningSocket
from celu.transport.websocket_threads import REJECTED, EventLoopThread, reject, start

try:
    from websockets.asyncio.client import connect
    from websockets.asyncio.connection import Connection as WebSocket
    from websockets.asyncio.server import Server, ServerConnection, serve
    from websockets.exceptions import (
        ConnectionClosed,
        InvalidHandshake,
        InvalidMessage,
        InvalidStatus,
        WebSocketException,
    )
    from websockets.http11 import Request, Response

    from celu.transport.websocket_socket import CLOSE_S, ClientSocket, ServerSocket
except ImportError as error:
    raise ConfigError(
        'carrier = "websocket": expected the package websockets 15 or newer, got none; '
        'install it with: pip install "celu[websocket]"'
    ) from error

PATH = "/celu"
_SILENT = logging.getLogger("celu.websocket")  # we report its errors as our own
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
_LIMITS: dict[str, Any] = {
    "compression": None,  # floats barely compress, ciphertext not at all
    "max_size": MAX_ENCRYPTED_BYTES,
    "max_queue": 2,
    "open_timeout": IDENTIFY_S,  # includes the TLS handshake
    "close_timeout": CLOSE_S,
    # Pings keep a gateway from closing an idle connection. A missing pong is no error: a peer that
    # computes may not read for a while. Links have deadlines of their own.
    "ping_interval": 20.0,
    "ping_timeout": None,
    "logger": _SILENT,
}


class Listener(carrier.Listener):
    """Accepts peers on one port."""

    def __init__(self, address: str, admission: Admission) -> None:
        super().__init__(admission)
        self._clients = Clients()
        self._loop = EventLoopThread()
        try:
            self._servers = self._loop.run(self._serve(address))
        except OSError as error:
            self._loop.stop()
            raise ConfigError(
                f"listen: expected an address of this machine with a free port, got {address}"
            ) from error
        self.port = int(next(iter(self._servers[0].sockets)).getsockname()[1])

    async def _serve(self, address: str) -> list[Server]:
        """One server for each address of a host name, such as IPv4's and IPv6's of localhost."""
        host, port = address.rsplit(":", 1)
        credentials, context = self.admission.credentials, None
        if credentials is not None and not self.admission.behind_gateway:
            context = server_context(credentials, self.admission.peers)
            context.set_alpn_protocols([ALPN["websocket"]])
            report_handshakes(
                context, self.admission.peers, credentials.files[0], self.admission.note_rejection
            )
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), int(port), type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE
        )
        listening: list[ListeningSocket] = []
        try:
            for family, _, _, _, where in dict.fromkeys(found):
                listening.append(ListeningSocket(family, where, self._clients))
        except OSError:
            for socket in listening:
                socket.close()
            raise
        return [
            await serve(
                self._exchange,
                sock=socket,
                ssl=context,
                process_request=self._check_request,
                create_connection=ServerSocket,
                backlog=BACKLOG,
                **_LIMITS,
            )
            for socket in listening
        ]

    def stop(self) -> None:
        """See `carrier.Listener`."""
        self.admission.stop()
        self._loop.run(self._close())
        self._loop.stop()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        self._clients.disconnect_waiting()
        closed = [asyncio.ensure_future(server.wait_closed()) for server in self._servers]
        await asyncio.wait(closed, timeout=CLOSE_S)

    def _check_request(self, socket: ServerConnection, request: Request) -> Response | None:
        """Reject a client with an unexpected certificate or name before the WebSocket opens."""
        if request.path == PREFLIGHT_PATH:
            return socket.respond(200, "celu\n")
        try:
            self._authenticate(socket)
            self._clients.identify(socket.transport)
            return None
        except CeluError as error:
            self.admission.note_rejection(error, _address(socket))
            return socket.respond(403, f"{error}\n")

    def _authenticate(self, socket: ServerConnection) -> str:
        assert socket.request is not None
        tls = socket.transport.get_extra_info("ssl_object")
        der = tls.getpeercert(binary_form=True) if tls is not None else None
        pem = ssl.DER_cert_to_PEM_cert(der).encode("ascii") if der else None
        claimed = socket.request.headers.get_all(NAME_KEY)
        return self.admission.authenticate(claimed[0] if len(claimed) == 1 else "", pem)

    async def _exchange(self, socket: ServerConnection) -> None:
        try:
            name = self._authenticate(socket)
            connection = self.admission.admit(name)
        except CeluError as error:
            self.admission.note_rejection(error, _address(socket))
            await reject(socket, error)
            return
        start(connection, socket, self._loop)
        deadline = asyncio.get_running_loop().call_later(
            inner_tls.HANDSHAKE_S + CLOSE_S, connection.abort_unless_proven
        )
        await socket.wait_closed()
        deadline.cancel()
        if not connection.protocol.greeted and connection.problem is not None:
            self.admission.note_rejection(connection.problem, _address(socket))


class OutgoingConnection:
    """One connection to a peer that listens."""

    def __init__(
        self,
        route: Route,
        name: str,
        peer: str,
        credentials: Credentials | None,
        make_connection: MakeConnection,
    ) -> None:
        self._where = f"{peer} at {route.address}"
        self.connection = connection = make_connection()
        connection.explain_error = self._explain
        self._loop = EventLoopThread()
        try:
            if route.gateway is not None and credentials is not None:
                connection.inner_tls = InnerTls(credentials, peer)
            context = _context(route, peer, credentials)
            self._socket: WebSocket = self._loop.run(_dial(route, context, name, peer))
        except BaseException as error:
            self._loop.stop()
            if isinstance(error, Exception):
                problem = self._explain(error)
            else:
                problem = PeerLost("interrupted")
            connection.mark_ended(error if isinstance(error, CeluError) else problem)
            if isinstance(error, OSError | WebSocketException | EOFError):
                raise problem from error
            raise
        start(connection, self._socket, self._loop)

    def stop(self) -> None:
        """See `carrier.OutgoingConnection`."""
        self._loop.run(self._socket.close())
        self._loop.stop()

    def _explain(self, error: Exception) -> CeluError:
        text = printable(str(error))  # with headers and the close reason of the other side
        if isinstance(error, InvalidStatus) and error.response.status_code == 403:
            reason = printable(_text(error.response).strip())
            return CertificateError(f"{self._where} rejected us: {reason}")
        if isinstance(error, InvalidStatus) and error.response.status_code == 404:
            return ConfigError(
                f"{self._where} answers 404 for {PATH}; does its gateway forward that path?"
            )
        if isinstance(error, ConnectionClosed) and error.rcvd and error.rcvd.code == REJECTED:
            return CertificateError(f"{self._where} rejected us: {printable(error.rcvd.reason)}")
        if isinstance(error, InvalidMessage | InvalidHandshake):
            return PeerLost(f"{self._where} did not complete the WebSocket handshake: {text}")
        return PeerLost(f"the link to {self._where} broke: {reason_of(error)}")


def _context(route: Route, peer: str, credentials: Credentials | None) -> ssl.SSLContext | None:
    """The outer TLS: the gateway's, the peer's, or none."""
    if credentials is None:
        return None
    if route.gateway is None:
        context = client_context(credentials, peer)
    elif route.gateway.ca is None:
        return None
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=read_authority(route.gateway.ca).decode("ascii"))
    context.set_alpn_protocols([ALPN["websocket"]])
    return context


async def _dial(route: Route, context: ssl.SSLContext | None, name: str, peer: str) -> WebSocket:
    host, port = route.address.rsplit(":", 1)
    # The name that TLS verifies and that a gateway finds in the Host header.
    server_name = peer if route.gateway is None else route.gateway.name
    scheme = "ws" if context is None else "wss"
    return await connect(
        f"{scheme}://{server_name}:{port}{PATH}",
        host=host.strip("[]"),
        port=int(port),
        ssl=context,
        proxy=None,  # settings come from files, never from environment variables
        additional_headers={NAME_KEY: name},
        create_connection=ClientSocket,
        **_LIMITS,
    )


def _address(socket: ServerConnection) -> str:
    """Where a client connects from, without its port."""
    address = socket.remote_address
    return str(address[0]) if address else ""


def _text(response: Response) -> str:
    return bytes(response.body or b"")[:200].decode("utf-8", "replace")
