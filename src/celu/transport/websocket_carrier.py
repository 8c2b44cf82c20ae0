"""Links over WebSockets, which gateways pass on as they are: one connection to each peer.

Direct connections are under mutual TLS 1.3; behind a gateway, the port speaks plain HTTP and the
parties' TLS runs inside. What moves pieces between a link and a socket is in `websocket_threads`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any
from weakref import WeakSet

from celu.errors import CeluError, CertificateError, ConfigError, PeerLost
from celu.transport import carrier
from celu.transport.carrier import NAME_KEY, OPEN_S, Admission, MakeConnection, Route
from celu.transport.inner_tls import SEALED_BYTES, InnerTls
from celu.transport.message import printable
from celu.transport.preflight import PREFLIGHT_PATH, SPEAKS
from celu.transport.tls import Credentials, answering, calling, read_authority
from celu.transport.websocket_threads import CLOSE_S, REFUSED, Loop, start

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
    from websockets.protocol import State
except ImportError as error:
    raise ConfigError(
        'carrier = "websocket": expected the package websockets 15 or newer, got none; '
        'install it with: pip install "celu[websocket]"'
    ) from error

PATH = "/celu"
_SILENT = logging.getLogger("celu.websocket")  # its errors reach the user through ours
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
_LIMITS: dict[str, Any] = {
    "compression": None,  # floats do not compress, and what is sealed even less
    "max_size": SEALED_BYTES,
    "max_queue": 2,
    "open_timeout": OPEN_S,  # of the TLS handshake too
    "close_timeout": CLOSE_S,
    # Pings keep a gateway from closing what is quiet. An answer is not insisted on: a peer that
    # computes takes in nothing for a while. Links have deadlines of their own.
    "ping_interval": 20.0,
    "ping_timeout": None,
    "logger": _SILENT,
}


class Listener(carrier.Listener):
    """Waits for peers on one port."""

    def __init__(self, address: str, arrivals: Admission) -> None:
        super().__init__(arrivals)
        self._callers: WeakSet[ServerConnection] = WeakSet()
        self._loop = Loop()
        try:
            self._server = self._loop.do(self._serve(address))
        except OSError as error:
            self._loop.stop()
            raise ConfigError(
                f"listen: expected an address of this machine with a free port, got {address}"
            ) from error
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, address: str) -> Server:
        host, port = address.rsplit(":", 1)
        credentials, context = self.arrivals.credentials, None
        if credentials is not None and not self.arrivals.behind_gateway:
            context = answering(credentials, self.arrivals.peers)
            context.set_alpn_protocols([SPEAKS["websocket"]])
        return await serve(
            self._exchange,
            host.strip("[]"),
            int(port),
            ssl=context,
            process_request=self._check,
            create_connection=self._known,  # type: ignore[arg-type]
            **_LIMITS,
        )

    def _known(self, *args: Any, **more: Any) -> ServerConnection:
        caller = ServerConnection(*args, **more)
        self._callers.add(caller)
        return caller

    def stop(self) -> None:
        """See `carrier.Listener`."""
        self.arrivals.stop()
        self._loop.do(self._close())
        self._loop.stop()

    async def _close(self) -> None:
        self._server.close()
        for caller in list(self._callers):
            # One that has not said what it wants, and may never.
            if caller.state is State.CONNECTING and hasattr(caller, "transport"):
                caller.transport.abort()
        await asyncio.wait([asyncio.ensure_future(self._server.wait_closed())], timeout=CLOSE_S)

    def _check(self, socket: ServerConnection, request: Request) -> Response | None:
        """Turn away, before there is a WebSocket, whose certificate or name will not do."""
        if request.path == PREFLIGHT_PATH:
            return socket.respond(200, "celu\n")
        try:
            self._caller(socket)
            return None
        except CeluError as error:
            self.arrivals.turn_away(str(error))
            return socket.respond(403, f"{error}\n")

    def _caller(self, socket: ServerConnection) -> str:
        assert socket.request is not None
        tls = socket.transport.get_extra_info("ssl_object")
        der = tls.getpeercert(binary_form=True) if tls is not None else None
        pem = ssl.DER_cert_to_PEM_cert(der).encode("ascii") if der else None
        claimed = socket.request.headers.get_all(NAME_KEY)
        return self.arrivals.caller(claimed[0] if len(claimed) == 1 else "", pem)

    async def _exchange(self, socket: ServerConnection) -> None:
        try:
            name = self._caller(socket)
            connection = self.arrivals.admit(name)
        except CeluError as error:
            return await self._refuse(socket, error)
        start(connection, socket, self._loop)
        await socket.wait_closed()
        if not connection.protocol.greeted and connection.problem is not None:
            self.arrivals.turn_away(str(connection.problem))
        return None

    async def _refuse(self, socket: ServerConnection, error: CeluError) -> None:
        self.arrivals.turn_away(str(error))
        await socket.close(REFUSED, str(error)[:100])


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
        connection.explain = self._explain
        self._loop = Loop()
        try:
            if route.gateway is not None and credentials is not None:
                connection.inner_tls = InnerTls(credentials, peer)
            context = _context(route, peer, credentials)
            self._socket: WebSocket = self._loop.do(_call(route, context, name, peer))
        except BaseException as error:
            self._loop.stop()
            problem = self._explain(error) if isinstance(error, Exception) else PeerLost("given up")
            connection.end(error if isinstance(error, CeluError) else problem)
            if isinstance(error, OSError | WebSocketException | EOFError):
                raise problem from error
            raise
        start(connection, self._socket, self._loop)

    def stop(self) -> None:
        """See `carrier.OutgoingConnection`."""
        self._loop.do(self._socket.close())
        self._loop.stop()

    def _explain(self, error: Exception) -> CeluError:
        if isinstance(error, InvalidStatus) and error.response.status_code == 403:
            said = _text(error.response).strip()
            return CertificateError(f"{self._where} turned us away: {printable(said)}")
        if isinstance(error, InvalidStatus) and error.response.status_code == 404:
            return ConfigError(
                f"expected a way to {self._where}, got none for {PATH}; "
                "does its gateway pass that on?"
            )
        if isinstance(error, ConnectionClosed) and error.rcvd and error.rcvd.code == REFUSED:
            return CertificateError(f"{self._where} turned us away: {printable(error.rcvd.reason)}")
        if isinstance(error, InvalidMessage | InvalidHandshake):
            return PeerLost(f"{self._where} did not answer as a WebSocket does: {error}")
        return PeerLost(f"the link to {self._where} broke: {error or type(error).__name__}")


def _context(route: Route, peer: str, credentials: Credentials | None) -> ssl.SSLContext | None:
    """The connection's own TLS: the gateway's, the peer's, or none."""
    if credentials is None:
        return None
    if route.gateway is None:
        context = calling(credentials, peer)
    elif route.gateway.ca is None:
        return None
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=read_authority(route.gateway.ca).decode("ascii"))
    context.set_alpn_protocols([SPEAKS["websocket"]])
    return context


async def _call(route: Route, context: ssl.SSLContext | None, name: str, peer: str) -> WebSocket:
    host, port = route.address.rsplit(":", 1)
    named = peer if route.gateway is None else route.gateway.name  # for TLS, and a gateway's hosts
    scheme = "ws" if context is None else "wss"
    return await connect(
        f"{scheme}://{named}:{port}{PATH}",
        host=host.strip("[]"),
        port=int(port),
        ssl=context,
        proxy=None,  # settings come from files, not from the environment
        additional_headers={NAME_KEY: name},
        **_LIMITS,
    )


def _text(response: Response) -> str:
    return bytes(response.body or b"")[:200].decode("utf-8", "replace")
