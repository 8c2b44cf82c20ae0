"""Threads between a connection, which blocks, and a WebSocket in an asyncio event loop.

The asyncio API of `websockets` runs in one thread with its own loop, because its threading API
shares a TLS connection between threads. Two threads per connection pass pieces to and from the
loop and wait for each one, so nothing queues up. A WebSocket has no half-close: an empty message
ends a direction. Dialing and listening are in `websocket_carrier`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from celu.errors import CeluError, PeerLost, ProtocolError
from celu.threads import DaemonThreads
from celu.transport.connection import Connection

if TYPE_CHECKING:
    from websockets.asyncio.connection import Connection as WebSocket

CLOSE_S = 2.0
REJECTED = 1008  # close code "policy violation", with a reason
_TRY_LATER = 1013  # close code "try again later"
_MAX_REASON_BYTES = 120  # a close frame holds at most 123
_END = b""
_DRAIN_ITERATIONS = 5  # of a stopping loop, in which cancelled tasks close their sockets
_T = TypeVar("_T")


class _Loop(asyncio.SelectorEventLoop):
    """Resolves names on a daemon thread: one that takes long must not delay the process's end."""

    def __init__(self) -> None:
        super().__init__()
        self._resolver = DaemonThreads(1, "celu-resolve")

    async def getaddrinfo(self, *address: Any, **options: Any) -> Any:
        """See `asyncio.loop.getaddrinfo`."""
        resolve = partial(socket.getaddrinfo, *address, **options)
        return await self.run_in_executor(self._resolver, resolve)

    def close(self) -> None:
        """See `asyncio.loop.close`."""
        self._resolver.shutdown(wait=False)
        super().close()


class EventLoopThread:
    """An asyncio event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = _Loop()
        self._lock = threading.Lock()  # nothing may be submitted to the loop after `stop`
        self._stopped = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="celu-websocket", daemon=True
        )
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop and return its result; raises PeerLost after `stop`."""
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise PeerLost("the connection has ended")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call something in the loop; does nothing after `stop`."""
        with self._lock:
            if not self._stopped:
                self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Cancel all tasks and end the thread."""
        with self._lock:
            self._stopped = True
            cancelled = asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop)
        cancelled.result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        self._loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for _ in range(_DRAIN_ITERATIONS):
        await asyncio.sleep(0)


def start(connection: Connection, socket: WebSocket, loop: EventLoopThread) -> None:
    """Start the two threads of a connection."""
    connection.cancel = lambda: loop.call_soon(socket.transport.abort)
    for prefix, target in (("to", _send), ("from", _receive)):
        threading.Thread(
            target=target,
            args=(connection, socket, loop),
            name=f"{prefix}-{connection.peer}",
            daemon=True,
        ).start()


def _send(connection: Connection, socket: WebSocket, loop: EventLoopThread) -> None:
    pieces = connection.outgoing_pieces()
    try:
        for piece in pieces:
            loop.run(socket.send(piece))
        loop.run(_finish(connection, socket))
    except Exception:  # the receiving thread reports it
        return
    finally:
        pieces.close()


async def reject(socket: WebSocket, problem: CeluError) -> None:
    """Close a client's connection; the code says whether it may try again."""
    code = _TRY_LATER if isinstance(problem, PeerLost) else REJECTED
    reason = str(problem).encode("utf-8")[:_MAX_REASON_BYTES].decode("utf-8", "ignore")
    await socket.close(code, reason)


async def _finish(connection: Connection, socket: WebSocket) -> None:
    """End our direction; close the connection with the reason if the peer was rejected."""
    if not connection.protocol.greeted and connection.problem is not None:
        await reject(socket, connection.problem)
    else:
        await socket.send(_END)


def _receive(connection: Connection, socket: WebSocket, loop: EventLoopThread) -> None:
    connection.receive_pieces(_pieces(socket, loop))


def _pieces(socket: WebSocket, loop: EventLoopThread) -> Iterator[bytes]:
    while True:
        piece = loop.run(socket.recv())
        if isinstance(piece, str):
            raise ProtocolError("expected bytes, got text")
        if piece == _END:
            return
        yield piece
