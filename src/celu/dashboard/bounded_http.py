"""HTTP connections that are bounded in number and in time.

A dashboard shares its process, and so its limit of open files, with the run that it shows. Uvicorn
checks its own limit only when a request arrives, and waits for a first request forever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONCURRENT = 32  # requests and streams; a page has one stream
# Above MAX_CONCURRENT a request is answered with 503; above this, a connection is not accepted.
MAX_CONNECTIONS = 64
REQUEST_S = 10.0  # for a client to send a complete request


class BoundedHttp(H11Protocol):
    """A connection that is aborted if there are too many, or if its request takes too long."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        super().connection_lost(exc)
        self._clear_deadline()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. Part of a request does not extend its deadline."""
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        """Called by uvicorn."""
        super().on_response_complete()
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Start the clock for the next request; stop it while a request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._clear_deadline()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
