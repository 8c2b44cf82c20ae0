"""Between a link, which blocks, and WebSockets in an event loop: the threads on either side.

The package's asyncio interface runs in one thread with a loop of its own, because its blocking one
shares a TLS connection between threads. Two threads a link hand pieces to that loop and take them
from it, each waiting for the other side, so nothing piles up. A WebSocket has no half-close: an
empty message says that nothing follows. Who connects to whom is not decided here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from celu.errors import PeerLost, ProtocolError
from celu.transport.stream import Connection

if TYPE_CHECKING:
    from websockets.asyncio.connection import Connection as WebSocket

CLOSE_S = 2.0
REFUSED = 1008  # closed for "policy violation"; the reason says which
_LATER = 1013  # closed for "try again later"
_END = b""
_LAST_TURNS = 5  # of a loop, in which what was cancelled lets go of its sockets
_T = TypeVar("_T")


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()  # nothing may be given to the loop after its last word
        self._stopped = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="celu-websocket", daemon=True
        )
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine there, and wait for what it gives; raises PeerLost after the end."""
        with self._lock:
            if self._stopped:
                work.close()
                raise PeerLost("the connection has ended")
            given = asyncio.run_coroutine_threadsafe(work, self._loop)
        return given.result()

    def soon(self, call: Callable[[], object]) -> None:
        """Have something called there; after the end, nothing is."""
        with self._lock:
            if not self._stopped:
                self._loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        """Cancel what still runs there, and end the thread."""
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
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)


def start(connection: Connection, socket: WebSocket, loop: Loop) -> None:
    """Start the two threads of a connection."""
    connection.cancel = lambda: loop.soon(socket.transport.abort)
    for prefix, target in (("to", _send), ("from", _receive)):
        threading.Thread(
            target=target,
            args=(connection, socket, loop),
            name=f"{prefix}-{connection.peer}",
            daemon=True,
        ).start()


def _send(connection: Connection, socket: WebSocket, loop: Loop) -> None:
    pieces = connection.outgoing()
    try:
        for piece in pieces:
            loop.do(socket.send(piece))
        loop.do(_finish(connection, socket))
    except Exception:  # the receiving side says what happened
        return
    finally:
        pieces.close()


async def _finish(connection: Connection, socket: WebSocket) -> None:
    """Say that nothing follows; a caller that was not let in is told why, and that is all."""
    if not connection.protocol.greeted and connection.problem is not None:
        code = _LATER if isinstance(connection.problem, PeerLost) else REFUSED
        await socket.close(code, str(connection.problem)[:100])
    else:
        await socket.send(_END)


def _receive(connection: Connection, socket: WebSocket, loop: Loop) -> None:
    connection.pump(_pieces(socket, loop))


def _pieces(socket: WebSocket, loop: Loop) -> Iterator[bytes]:
    while True:
        piece = loop.do(socket.recv())
        if isinstance(piece, str):
            raise ProtocolError("expected bytes, got text")
        if piece == _END:
            return
        yield piece
