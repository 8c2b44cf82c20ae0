"""WebSockets whose other end may misbehave: bounds on what it makes us buffer and wait for.

The `websockets` package answers every PING at once and waits without a limit for a client that
does not read its answers. What a WebSocket carries is up to `websocket_carrier`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State

CLOSE_S = 2.0
MAX_CLIENTS = 256  # open connections of a listener, with or without a complete request
# PINGs that the other end may send while it does not read our answers. A party or a gateway sends
# one in several seconds, and is found silent long before it has sent that many.
MAX_UNREAD_PINGS = 100


class _Bounded(Connection):
    """A WebSocket that is aborted when its other end goes beyond a bound."""

    _num_unread_pings = 0

    def process_event(self, event: Request | Response | Frame) -> None:
        """Process a frame; abort if the answers to PINGs pile up in the write buffer."""
        super().process_event(event)
        if isinstance(event, Frame) and event.opcode is Opcode.PING:
            self._num_unread_pings = self._num_unread_pings + 1 if self.paused else 0
            if self._num_unread_pings > MAX_UNREAD_PINGS:
                self.transport.abort()

    async def close(
        self, code: CloseCode | int = CloseCode.NORMAL_CLOSURE, reason: str = ""
    ) -> None:
        """Perform the closing handshake; abort if that takes longer than `CLOSE_S`."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await super().close(code, reason)
        except (TimeoutError, ConnectionClosed):
            pass
        finally:
            self.transport.abort()


class ServerSocket(_Bounded, ServerConnection):
    """A client's WebSocket at the side that listens.

    `clients` are the open ones of a listener, oldest first. If there are too many, the oldest that
    has not sent its whole request is aborted: one request takes a peer less time than a crowd takes
    to replace them all.
    """

    def __init__(self, clients: dict[ServerSocket, None], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clients = clients

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        super().connection_made(transport)
        self._clients[self] = None
        if len(self._clients) > MAX_CLIENTS:
            waiting = (client for client in self._clients if client.state is State.CONNECTING)
            oldest = next(waiting, self)
            del self._clients[oldest]
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        super().connection_lost(exc)
        self._clients.pop(self, None)


class ClientSocket(_Bounded, ClientConnection):
    """A WebSocket to a peer that listens."""
