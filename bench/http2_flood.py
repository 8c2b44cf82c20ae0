"""A minimal HTTP/2 client that floods a gRPC port: many streams that send data and never finish.

It speaks to 127.0.0.1 only, and sends what flow control permits. It is no general client.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import ssl
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8, 0x9,
)  # fmt: skip
ACK, END_HEADERS = 0x1, 0x4
_INITIAL_WINDOW_SIZE = 0x4
_DEFAULT_WINDOW = 65535
_MAX_FRAME = 16384
_MESSAGE_BYTES = 900_000  # the announced size of a gRPC message of which the end never comes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def encode_headers(headers: list[tuple[str, str]]) -> bytes:
    """HPACK without compression: literals that are not indexed."""
    encoded = b""
    for name, value in headers:
        encoded += b"\x00" + bytes([len(name)]) + name.encode()
        encoded += bytes([len(value)]) + value.encode()
    return encoded


def request(name: str, stripe: str, token: str) -> bytes:
    """The headers with which a party announces a stripe."""
    return encode_headers(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/celu.Link/Exchange"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("celu-name", name),
            ("celu-stripe", stripe),
            ("celu-token", token),
        ]
    )


@dataclass
class Http2Connection:
    """A connection whose streams send as much as the server's windows permit."""

    port: int
    context: ssl.SSLContext | None = None
    is_open: bool = True
    refused: int = 0  # streams that the server ended
    _window: int = _DEFAULT_WINDOW
    _initial_window: int = _DEFAULT_WINDOW
    _streams: dict[int, int] = field(default_factory=dict)  # number to what was sent
    _granted: dict[int, int] = field(default_factory=dict)  # number to window updates
    _next: int = 1
    _input: bytes = b""
    _output: bytes = PREFACE + frame(SETTINGS, 0, 0)

    def __post_init__(self) -> None:
        sock = socket.create_connection(("127.0.0.1", self.port), 10)
        if self.context is not None:
            sock = self.context.wrap_socket(sock, server_hostname="guest")
        sock.setblocking(False)
        self.sock = sock

    @property
    def num_streams(self) -> int:
        """Streams that the server has not ended."""
        return len(self._streams)

    def open_stream(self, headers: bytes) -> int:
        """Announce a stream and start a message on it."""
        number, self._next = self._next, self._next + 2
        self._streams[number] = 0
        self.write(frame(HEADERS, END_HEADERS, number, headers))
        return number

    def write(self, data: bytes) -> None:
        """Send frames, or buffer them until the socket has room."""
        self._output += data

    @property
    def unsent(self) -> int:
        """Bytes that wait for room in the socket."""
        return len(self._output)

    def fill_windows(self) -> None:
        """Send data on every stream up to its window."""
        for number in self._streams:
            sent = self._streams[number]
            room = self._initial_window + self._granted.get(number, 0) - sent
            while room > 0 and self._window > 0 and self.unsent < 1 << 20:
                payload = bytes(min(room, self._window, _MAX_FRAME))
                if sent == 0:
                    payload = struct.pack(">BI", 0, _MESSAGE_BYTES) + payload[5:]
                self.write(frame(DATA, 0, number, payload))
                sent, room = sent + len(payload), room - len(payload)
                self._window -= len(payload)
            self._streams[number] = sent

    def pump(self) -> None:
        """Move bytes both ways without blocking; closes the connection when the server did."""
        try:
            with suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                while self._output:
                    sent = self.sock.send(self._output[:65536])
                    self._output = self._output[sent:]
            with suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                while data := self.sock.recv(65536):
                    self._input += data
                self.close()
        except OSError:
            self.close()
        self._read_frames()

    def _read_frames(self) -> None:
        while len(self._input) >= 9:
            size = int.from_bytes(self._input[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", self._input[3:9])
            if len(self._input) < 9 + size:
                return
            payload, self._input = self._input[9 : 9 + size], self._input[9 + size :]
            self._read_frame(kind, flags, stream, payload)

    def _read_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for key, value in struct.iter_unpack(">HI", payload):
                if key == _INITIAL_WINDOW_SIZE:
                    self._initial_window = value
            self.write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            (increment,) = struct.unpack(">I", payload)
            if stream == 0:
                self._window += increment
            else:
                self._granted[stream] = self._granted.get(stream, 0) + increment
        elif kind == RST_STREAM or (kind == HEADERS and flags & ACK):  # END_STREAM is 0x1 too
            self.refused += self._streams.pop(stream, None) is not None

    def close(self) -> None:
        """Drop the connection, and its streams."""
        self.is_open = False
        self.sock.close()


@dataclass(frozen=True)
class FloodResult:
    """What an attack did."""

    opened: int  # streams
    refused: int
    connections: int


def flood_streams(
    port: int,
    name: str,
    context: ssl.SSLContext | None,
    seconds: float,
    *,
    connections: int = 8,
    streams: int = 500,
    stripes: int = 64,
) -> FloodResult:
    """Open incomplete stripes and send on them, until the seconds are over.

    Ended connections and streams are replaced: `streams` is for each of `connections`.
    """
    flood: list[Http2Connection] = []
    ended: list[Http2Connection] = []
    opened = 0
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            ended += [connection for connection in flood if not connection.is_open]
            flood = [connection for connection in flood if connection.is_open]
            with suppress(OSError):
                while len(flood) < connections:
                    flood.append(Http2Connection(port, context))
            for connection in flood:
                while connection.num_streams < streams and connection.unsent < 1 << 16:
                    if opened % (stripes - 1) == 0:  # the last stripe never comes
                        token = secrets.token_hex(16)
                    headers = request(name, f"{opened % (stripes - 1)}/{stripes}", token)
                    connection.open_stream(headers)
                    opened += 1
                connection.fill_windows()
                connection.pump()
            _wait_for_input([connection for connection in flood if connection.is_open])
    finally:
        for connection in flood:
            connection.close()
    refused = sum(connection.refused for connection in flood + ended)
    return FloodResult(opened, refused, len(flood) + len(ended))


def _wait_for_input(connections: list[Http2Connection]) -> None:
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.sock, selectors.EVENT_READ)
        selector.select(0.02)
