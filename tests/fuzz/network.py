"""Decoders of what a stranger sends before it has authenticated, with real sockets and TLS.

The dashboard's HTTP, a WebSocket's upgrade at either side, the preflight, and the inner TLS.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.server import ServerState
from websockets.utils import accept_key

import celu
from celu.certs import make_authority, make_party
from celu.config.serve import ServeSettings
from celu.dashboard.live import open_runs
from celu.dashboard.routes import application
from celu.http_limits import AllowedHosts, BoundedHttp
from celu.serving.batching import Batcher
from celu.serving.http import Health, HttpApp
from celu.serving.serve_metrics import ServeMetrics
from celu.transport.carrier import Admission, Route
from celu.transport.inner_tls_engine import InnerTlsEngine
from celu.transport.preflight import Gateway, preflight, preflight_gateway
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials, client_context, server_context
from celu.transport.websocket_carrier import Listener, OutgoingConnection
from record.folders import events, write_run
from serving.guests import COMMON, federated

WAIT_S = 4.0
_SOURCE = str(Path(celu.__file__).parent)
ByteDecoder = tuple[str, list[bytes], Callable[[bytes], object]]
UPGRADE = (
    b"GET /celu HTTP/1.1\r\nHost: celu\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n"
    b"celu-name: host\r\n\r\n"
)
PREFLIGHT = b"GET /celu/knock HTTP/1.1\r\nHost: celu\r\n\r\n"
FRAMES = b"\x82\x84" + bytes(4) + b"abcd" + b"\x89\x80" + bytes(4)  # a binary message, a PING
ANSWER = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: @accept@\r\n\r\n"
)
REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n"
GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"


def network_decoders(folder: Path, stack: ExitStack) -> Iterator[ByteDecoder]:
    """The name, valid inputs and decoder of each protocol."""
    for name in ("guest", "host"):
        make_authority(folder / name, name)
        make_party(folder / name, name)
    guest, host = (_credentials(folder, *pair) for pair in (("guest", "host"), ("host", "guest")))
    yield dashboard_http(folder, stack)
    yield serve_http(folder, stack)
    yield websocket_upgrade(guest, stack)
    yield websocket_answer(host)
    yield preflight_answer(folder, host)
    yield inner_tls(guest, host)


def _credentials(folder: Path, name: str, peer: str) -> Credentials:
    own = folder / name
    return Credentials.read(
        own / f"{name}.pem", own / f"{name}.key", {peer: folder / peer / "ca.pem"}
    )


class _Errors(logging.Handler):
    """Collects the errors that a library logs instead of raising them.

    With `ours`, only those that passed through celu: websockets contains its own, and logs a bad
    handshake as an error as well.
    """

    def __init__(self, *loggers: str, ours: bool = False) -> None:
        super().__init__(logging.ERROR)
        self._found: list[str] = []
        self._ours = ours
        for name in loggers:
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        frames = [] if error is None else traceback.extract_tb(error.__traceback__)
        if not self._ours or any(frame.filename.startswith(_SOURCE) for frame in frames):
            self._found.append(self.format(record))

    def raise_any(self) -> None:
        found, self._found = self._found, []
        assert not found, found[0]


class _Sink(asyncio.Transport):
    """A transport that drops what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._closing = False

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        self._closing = True

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


def dashboard_http(folder: Path, stack: ExitStack) -> ByteDecoder:
    """Requests of a browser, or of anything else that can reach the port."""
    run = write_run(folder / "run", events(3), summary={"status": "done"})
    app = application(open_runs([run]), AllowedHosts(), metrics=True, is_closing=lambda: True)
    pages = (b"", b"events", b"metrics", b"assets/style.css", b"assets/%2e%2e%2fx", b"nothing?a=1")
    post = b"POST / HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: chunked\r\n\r\n"
    post += b"1\r\na\r\n0\r\n\r\n"
    return "dashboard http", [*(GET % page for page in pages), post], _http_decoder(app, stack)


def serve_http(folder: Path, stack: ExitStack) -> ByteDecoder:
    """Requests of a client of a serving guest, or of anything else that can reach the port."""
    parties = federated(folder / "parties")
    batcher = Batcher(parties.inference.serve, max_rows=100, max_jobs=100, num_threads=1)
    stack.enter_context(batcher)
    settings = ServeSettings(deadline_ms=1000.0, max_rows=20, max_body_mb=1)
    health = Health(lambda: parties.served, lambda: True, lambda: True)
    app = HttpApp(settings, None, batcher, health, ServeMetrics(lambda: iter(())))
    tensor = {"name": "id", "shape": [2], "datatype": "BYTES", "data": COMMON[:2]}
    columns = [
        {"name": name, "shape": [2], "datatype": "FP64", "data": [0.5, None]}
        for name in parties.stores["guest"].schema.numbers
    ]
    columns += [
        {"name": name, "shape": [2, 1], "datatype": "BYTES", "data": [["a"], ["b"]]}
        for name in parties.stores["guest"].schema.categories
    ]
    requests = [GET % path for path in (b"v2", b"v2/models/celu", b"metrics", b"v2/health/ready")]
    for content in (
        {"inputs": [tensor]},
        {"id": "mine", "inputs": [tensor, *columns], "outputs": [{"name": "score"}]},
    ):
        body = json.dumps(content).encode()
        requests.append(
            b"POST /v2/models/celu/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            + str(len(body)).encode() + b"\r\n\r\n" + body
        )  # fmt: skip
    return "serve http", requests, _http_decoder(app, stack)


def _http_decoder(app: Any, stack: ExitStack) -> Callable[[bytes], object]:
    """Passes bytes to an application as a connection of the HTTP server would."""
    config = uvicorn.Config(
        app, http=BoundedHttp, ws="none", lifespan="off", log_config=None, access_log=False,
        proxy_headers=False,
    )  # fmt: skip
    config.load()
    errors = _Errors("uvicorn.error", "asyncio")
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)

    async def exchange(data: bytes) -> None:
        state, transport = ServerState(), _Sink()
        protocol = BoundedHttp(config=config, server_state=state, app_state={}, _loop=loop)
        protocol.connection_made(transport)
        for start in range(0, len(data), 4096):
            if not transport.is_closing():
                protocol.data_received(data[start : start + 4096])
        protocol.eof_received()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=0.5)
        protocol.connection_lost(None)
        if state.tasks:
            _, pending = await asyncio.wait(state.tasks, timeout=WAIT_S)
            assert not pending, "a request is still being answered after its connection ended"

    def decode(data: bytes) -> None:
        loop.run_until_complete(exchange(data))
        errors.raise_any()

    return decode


def websocket_upgrade(guest: Credentials, stack: ExitStack) -> ByteDecoder:
    """A client of a listener behind a gateway: its request, then frames that prove nothing."""
    links = {"host": StreamLink("host", deadline_s=600)}
    listener = Listener("127.0.0.1:0", Admission(links, guest, behind_gateway=True))
    stack.callback(listener.stop)
    errors = _Errors("celu.websocket", ours=True)

    def decode(data: bytes) -> None:
        client = socket.create_connection(("127.0.0.1", listener.port), WAIT_S)
        with client, suppress(ConnectionError):
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                continue
        errors.raise_any()

    return "websocket upgrade", [UPGRADE, PREFLIGHT, UPGRADE + FRAMES], decode


def _with_accept_key(data: bytes, asked: bytes) -> bytes:
    """An answer with the key that belongs to the request, in place of "@accept@"."""
    key = re.search(rb"Sec-WebSocket-Key: (\S+)", asked)
    accept = accept_key(key[1].decode("ascii")).encode("ascii") if key else b""
    return data.replace(b"@accept@", accept)


def _answering(data: bytes, connect: Callable[[str], object]) -> None:
    """Call `connect` with the address of a server that sends `data`, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)

        def answer() -> None:
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(WAIT_S)
                    asked = connection.recv(65536)
                    connection.sendall(_with_accept_key(data, asked))
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        continue

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            connect(f"127.0.0.1:{server.getsockname()[1]}")
        finally:
            server.close()
            thread.join()


def websocket_answer(host: Credentials) -> ByteDecoder:
    """What a listener, or a proxy before it, answers to our request."""
    errors = _Errors("celu.websocket", ours=True)

    def connect(address: str) -> None:
        link = StreamLink("guest", deadline_s=600)
        route = Route(address, gateway=Gateway("localhost"))
        try:
            outgoing = OutgoingConnection(
                route, "host", "guest", host, lambda: link.make_connection(dials=True)
            )
            outgoing.stop()
        finally:
            link.close()

    def decode(data: bytes) -> None:
        try:
            _answering(data, connect)
        finally:
            errors.raise_any()

    return "websocket answer", [ANSWER, ANSWER + b"\x82\x04abcd", REFUSAL], decode


def preflight_answer(folder: Path, host: Credentials) -> ByteDecoder:
    """What answers where we expect a peer (the first byte is even) or its gateway."""
    gateway = Gateway("localhost", folder / "guest" / "ca.pem")

    def connect(kind: int, address: str) -> None:
        if kind % 2:
            preflight_gateway(address, "guest", gateway, "websocket", 0.0)
        else:
            preflight(address, "guest", host, "websocket", 0.0)

    def decode(data: bytes) -> None:
        kind = data[0] if data else 0
        _answering(data[1:], lambda address: connect(kind, address))

    alert = b"\x15\x03\x03\x00\x02\x02\x28"
    return "preflight answer", [b"\0" + alert, b"\1" + alert, b"\0HTTP/1.1 400\r\n\r\n"], decode


def inner_tls(guest: Credentials, host: Credentials) -> ByteDecoder:
    """Flights and pieces, each after its length.

    By its first byte an input arrives at the side that listens or dials, and before or after the
    handshake.
    """
    at_guest, at_host = server_context(guest, ["host"]), client_context(host, "guest")

    def engines() -> tuple[InnerTlsEngine, InnerTlsEngine, list[bytes], list[bytes]]:
        to_guest: list[bytes] = []
        to_host: list[bytes] = []
        listens = InnerTlsEngine(
            at_guest, "host", guest.authorities["host"], to_host.append, lambda: None
        )
        dials = InnerTlsEngine(at_host, "guest", host.authorities["guest"], to_guest.append)
        return listens, dials, to_guest, to_host

    def decode(data: bytes) -> None:
        listens, dials, to_guest, to_host = engines()
        kind = data[0] % 4 if data else 0
        while kind >= 2 and not (listens.is_open and dials.is_open):
            for engine, flights in ((listens, to_guest), (dials, to_host)):
                for flight in flights[:]:
                    engine.receive(flight)
                flights.clear()
        attacked = (listens, dials)[kind % 2]
        rest = data[1:]
        while rest:
            size = int.from_bytes(rest[:2], "big")
            attacked.receive(rest[2 : 2 + size])
            rest = rest[2 + size :]
        if attacked.is_open:
            attacked.encrypt(b"piece")

    _, _, to_guest, _ = engines()
    hello = to_guest[0]
    record = len(hello).to_bytes(2, "big") + hello
    return "inner tls", [bytes([kind]) + record for kind in range(4)], decode
