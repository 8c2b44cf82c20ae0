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
_SETTINGS_S = 10.0
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
    reads: bool = True  # False: what the server sends stays in the socket, and then at the server
    frame_bytes: int = _MAX_FRAME  # of data
    is_open: bool = True
    refused: int = 0  # streams that the server ended
    settings_received: bool = False
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
    def open_streams(self) -> list[int]:
        """Streams that the server has not ended."""
        return list(self._streams)

    def new_number(self) -> int:
        """The number of the next stream."""
        number, self._next = self._next, self._next + 2
        return number

    def open_stream(self, headers: bytes, flags: int = END_HEADERS) -> int:
        """Announce a stream."""
        number = self.new_number()
        self._streams[number] = 0
        self.write(frame(HEADERS, flags, number, headers))
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
                size = min(room, self._window, self.frame_bytes)
                repeat = max(1, min(room, self._window, 1 << 15) // size)
                payload = bytes(size)
                if sent == 0 and size >= 5:
                    payload, repeat = struct.pack(">BI", 0, _MESSAGE_BYTES) + payload[5:], 1
                self.write(frame(DATA, 0, number, payload) * repeat)
                sent, room = sent + size * repeat, room - size * repeat
                self._window -= size * repeat
            self._streams[number] = sent

    def pump(self) -> None:
        """Move bytes both ways without blocking; closes the connection when the server did."""
        try:
            with suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                while self._output:
                    sent = self.sock.send(self._output[:65536])
                    self._output = self._output[sent:]
            if not self.reads:
                return
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
            self.settings_received = True
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

    def acknowledge_settings(self) -> None:
        """Wait for the server's settings and acknowledge them; raises OSError if it sends none."""
        until = time.monotonic() + _SETTINGS_S
        while self.unsent or not self.settings_received:
            if not self.is_open or time.monotonic() > until:
                self.close()
                raise ConnectionError("the server sent no settings")
            wait_for_sockets([self])
            self.pump()

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
    frame_bytes: int = _MAX_FRAME,
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
                    flood.append(Http2Connection(port, context, frame_bytes=frame_bytes))
            for connection in flood:
                while len(connection.open_streams) < streams and connection.unsent < 1 << 16:
                    if opened % (stripes - 1) == 0:  # the last stripe never comes
                        token = secrets.token_hex(16)
                    headers = request(name, f"{opened % (stripes - 1)}/{stripes}", token)
                    connection.open_stream(headers)
                    opened += 1
                connection.fill_windows()
                connection.pump()
            wait_for_sockets([connection for connection in flood if connection.is_open])
    finally:
        for connection in flood:
            connection.close()
    refused = sum(connection.refused for connection in flood + ended)
    return FloodResult(opened, refused, len(flood) + len(ended))


def wait_for_sockets(connections: list[Http2Connection]) -> None:
    """Wait a moment for something to read, or for room to write."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            events = selectors.EVENT_READ if connection.reads else 0
            events |= selectors.EVENT_WRITE if connection.unsent else 0
            if events:
                selector.register(connection.sock, events)
        selector.select(0.02)
