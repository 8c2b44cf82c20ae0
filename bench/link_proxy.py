"""A TCP proxy that emulates a link between two sockets, without root.

Unlike pacing in the sender, it lets the protocols on top see the delay: HTTP/2 windows open one
round trip later. All connections share the link. It loses no packets, and TCP's own windows end at
the proxy: it measures how well celu, HTTP/2 and a gateway use a link.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from types import TracebackType

from celu.config.link import LinkSettings
from celu.transport.emulation import LinkEmulator

_CHUNK_BYTES = 32 * 1024
_QUEUE_BYTES = 4 * 1024 * 1024  # waiting in front of the link, as in a router

_Chunks = queue.Queue[tuple[float, bytes] | None]  # with their time of arrival; None at the end


class LinkProxy:
    """Forwards connections to `port` on loopback to another port, over a link in each direction."""

    def __init__(self, to_port: int, link: LinkSettings) -> None:
        self._to_port = to_port
        self._outbound, self._inbound = _Direction(link), _Direction(link)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = int(self._server.getsockname()[1])

    def __enter__(self) -> LinkProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for sock in (self._server, *self._open):
            _shutdown(sock)
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._to_port), timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.append(sock)
            self._outbound.forward(client, server)
            self._inbound.forward(server, client)


class _Direction:
    """One direction of the link."""

    def __init__(self, link: LinkSettings) -> None:
        self._link = LinkEmulator.from_settings(link)
        self._lock = threading.Lock()
        in_flight = int(link.mbps * 1e6 / 8 * 2 * link.delay_ms / 1000)
        self._max_chunks = (in_flight + _QUEUE_BYTES) // _CHUNK_BYTES  # per connection

    def forward(self, source: socket.socket, target: socket.socket) -> None:
        """Forward data from one socket to another, delayed by the link."""
        chunks: _Chunks = queue.Queue(self._max_chunks)
        for function in (self._read, self._write):
            threading.Thread(target=function, args=(source, target, chunks), daemon=True).start()

    def _read(self, source: socket.socket, _: socket.socket, chunks: _Chunks) -> None:
        try:
            while data := source.recv(_CHUNK_BYTES):
                with self._lock:
                    arrival = self._link.arrival(len(data), time.monotonic())
                chunks.put((arrival, data))  # blocks while the link is full
        except OSError:
            pass
        chunks.put(None)

    def _write(self, source: socket.socket, target: socket.socket, chunks: _Chunks) -> None:
        while (item := chunks.get()) is not None:
            arrival, data = item
            wait = arrival - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            try:
                target.sendall(data)
            except OSError:
                _shutdown(source)  # ends the thread that reads from it
                while chunks.get() is not None:
                    pass
                return
        _shutdown(target, socket.SHUT_WR)


def _shutdown(sock: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    try:
        sock.shutdown(how)
    except OSError:  # no longer connected
        return
