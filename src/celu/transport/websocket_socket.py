"""WebSockets whose other end may misbehave: bounds on what it makes us buffer and wait for.

The `websockets` package answers every PING at once and waits without a limit for a client that
does not read its answers. The number of clients is bounded in `websocket_clients`. What a WebSocket
carries is up to `websocket_carrier`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response

CLOSE_S = 2.0
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

    def send_data(self) -> None:
        """Write what waits at once: asyncio logs every write to a connection that is lost."""
        waiting = self.protocol.data_to_send()
        if self.transport.is_closing():
            return
        if data := b"".join(waiting):
            self.transport.write(data)
        if b"" in waiting:  # the end
            if self.transport.can_write_eof():
                with suppress(OSError):  # the other end has just left
                    self.transport.write_eof()
            else:  # TLS
                self.transport.close()

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
    """A client's WebSocket at the side that listens."""


class ClientSocket(_Bounded, ClientConnection):
    """A WebSocket to a peer that listens."""
