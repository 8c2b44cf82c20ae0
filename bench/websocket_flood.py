"""A WebSocket client that sends PINGs and never reads the answers. It speaks to 127.0.0.1 only."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import time
from contextlib import suppress

PING = b"\x89\xfd" + bytes(4) + bytes(125)  # masked with zeros, the longest that is allowed
_BURST = PING * 200


def upgrade(
    port: int, name: str, context: ssl.SSLContext | None = None, timeout_s: float = 10.0
) -> socket.socket:
    """A WebSocket under a name, with a small receive buffer; it has read the answer and no more.

    Raises OSError if the server refuses it. The timeout is that of each call of the socket.
    """
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(timeout_s)
        sock.connect(("127.0.0.1", port))
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname="guest")
        key = base64.b64encode(os.urandom(16)).decode("ascii")
        request = (
            "GET /celu HTTP/1.1\r\nHost: celu\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\ncelu-name: {name}\r\n\r\n"
        )
        sock.sendall(request.encode("ascii"))
        answer = b""
        while b"\r\n\r\n" not in answer and (byte := sock.recv(1)):
            answer += byte
        if not answer.startswith(b"HTTP/1.1 101"):
            raise ConnectionError("the server refused the WebSocket")
    except OSError:
        sock.close()
        raise
    return sock


def flood_pings(
    port: int, name: str, context: ssl.SSLContext | None, seconds: float, *, connections: int = 8
) -> int:
    """Send PINGs on each connection and read nothing, until the seconds are over.

    Ended connections are replaced. Returns the bytes sent.
    """
    sockets: list[socket.socket] = []
    sent, until = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            with suppress(OSError):
                while len(sockets) < connections:
                    sockets.append(upgrade(port, name, context))
                    sockets[-1].setblocking(False)
            for sock in list(sockets):
                try:
                    sent += sock.send(_BURST)
                except (BlockingIOError, ssl.SSLWantWriteError):
                    continue
                except OSError:
                    sockets.remove(sock)
                    sock.close()
            time.sleep(0.001)
    finally:
        for sock in sockets:
            sock.close()
    return sent
