"""A line between two sockets, emulated without root: what is sent to its port arrives elsewhere.

Unlike pacing in the sender, this lets the protocols on top feel the delay: windows of HTTP/2 are
opened one round trip later. All connections share the line. It loses nothing, and TCP's own windows
end at the proxy: what is measured through it is what celu, HTTP/2 and a gateway make of a line.
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
_QUEUE_BYTES = 4 * 1024 * 1024  # what waits in front of the line, as in a router


class LineProxy:
    """Forwards connections to `port` on loopback to another port, over a line each way."""

    def __init__(self, to_port: int, link: LinkSettings) -> None:
        self._to_port = to_port
        self._there, self._back = _Way(link), _Way(link)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = int(self._listening.getsockname()[1])

    def __enter__(self) -> LineProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for one in (self._listening, *self._open):
            _shut(one)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:  # closed
                return
            try:
                called = socket.create_connection(("127.0.0.1", self._to_port), timeout=10)
            except OSError:
                caller.close()
                continue
            called.settimeout(None)
            for one in (caller, called):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.append(one)
            self._there.carry(caller, called)
            self._back.carry(called, caller)


class _Way:
    """One direction of the line."""

    def __init__(self, link: LinkSettings) -> None:
        self._line = LinkEmulator.from_settings(link)
        self._lock = threading.Lock()
        in_flight = int(link.mbps * 1e6 / 8 * 2 * link.delay_ms / 1000)
        self._room = (in_flight + _QUEUE_BYTES) // _CHUNK_BYTES  # chunks that a connection may have

    def carry(self, source: socket.socket, target: socket.socket) -> None:
        """Forward what one socket gets to another, when the line has carried it."""
        carried: queue.Queue[tuple[float, bytes] | None] = queue.Queue(self._room)
        for work in (self._take, self._give):
            threading.Thread(target=work, args=(source, target, carried), daemon=True).start()

    def _take(self, source: socket.socket, _: socket.socket, carried: queue.Queue[object]) -> None:
        try:
            while data := source.recv(_CHUNK_BYTES):
                with self._lock:
                    arrival = self._line.arrival(len(data), time.monotonic())
                carried.put((arrival, data))  # waits where the line is full
        except OSError:
            pass
        carried.put(None)

    def _give(
        self,
        source: socket.socket,
        target: socket.socket,
        carried: queue.Queue[tuple[float, bytes] | None],
    ) -> None:
        while (item := carried.get()) is not None:
            arrival, data = item
            wait = arrival - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            try:
                target.sendall(data)
            except OSError:
                _shut(source)  # so that whoever reads from it ends
                while carried.get() is not None:
                    pass
                return
        _shut(target, socket.SHUT_WR)


def _shut(one: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    try:
        one.shutdown(how)
    except OSError:  # not connected any more
        return
