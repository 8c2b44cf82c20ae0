"""A proxy between two parties that a test cuts, silences, slows down and restores.

`silence` makes a half-open link: connections stay open, nothing is forwarded or accepted.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType

_CHUNK_BYTES = 64 * 1024
_TIMEOUT_S = 600.0  # for the proxy's own thread, on a busy machine
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST


class Proxy:
    """Forwards connections to `port` on loopback to `to_port`; use as a context manager."""

    def __init__(self, port: int, to_port: int) -> None:
        self.port = port
        self._to_port = to_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._flows = asyncio.Event()
        self._delay_s = 0.0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refuses = False
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._flows.set()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_TIMEOUT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT_S)
        self._loop.close()

    def cut(self, *, reset: bool) -> None:
        """Close all connections with RST or FIN, and accept none until `restore`."""
        self._do(lambda: self._cut(reset))

    def silence(self) -> None:
        """Forward and accept nothing until `restore`; neither side is notified."""
        self._do(self._flows.clear)

    def forget(self) -> None:
        """Drop all connections permanently without notifying the listening side.

        As when a machine loses power, or a firewall its table.
        """
        self._do(self._forget)

    def slow_down(self, delay_s: float) -> None:
        """Delay every chunk."""

        def slow() -> None:
            self._delay_s = delay_s

        self._do(slow)

    def restore(self) -> None:
        """Forward everything without delay."""
        self._do(self._restore)

    def _do(self, work: Callable[[], object]) -> None:
        done: Future[None] = Future()

        def call() -> None:
            work()
            done.set_result(None)

        self._loop.call_soon_threadsafe(call)
        done.result(_TIMEOUT_S)

    def _restore(self) -> None:
        self._refuses, self._delay_s = False, 0.0
        self._flows.set()

    def _cut(self, reset: bool) -> None:
        self._refuses = True
        for writer in self._open:
            if reset:
                _end_by_reset(writer)
            else:
                writer.close()

    def _forget(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        if self._refuses:
            return _end_by_reset(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            return writer.close()
        self._open |= {writer, back}
        ways = [self._forward(reader, back), self._forward(there, writer)]
        for way in ways:
            task = asyncio.ensure_future(way)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return None

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                writer.write(data)
                await writer.drain()
            await self._flows.wait()
        except OSError:
            _end_by_reset(writer)
        except asyncio.CancelledError:
            return  # dropped by `forget`: it stays open and is not notified
        writer.close()
        self._open.discard(writer)

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            _end_by_reset(writer)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _end_by_reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if not writer.transport.is_closing() and raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
