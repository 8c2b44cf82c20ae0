"""What bounds every HTTP server of celu: its connections, in number and in time, and its Hosts.

An HTTP server shares its process, and so its limit of open files, with other work. Uvicorn checks
its own limit only when a request arrives, and waits for a first request forever.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0  # for a client to send a complete request
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True)
class AllowedHosts:
    """The Host headers that a server answers to.

    A request with another one may come from a foreign page whose name was rebound to this machine
    (DNS rebinding). `any_address` also allows any IP address, which DNS rebinding cannot fake. Any
    port is allowed, because ports may be forwarded.
    """

    names: Collection[str] = LOOPBACK
    any_address: bool = False

    def allows(self, host: str) -> bool:
        """Whether a request with this Host header is answered."""
        found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+)(:\d{1,5})?", host)
        if found is None:
            return False
        name = found[1].lower()
        return name in self.names or (self.any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class BoundedHttp(H11Protocol):
    """A connection that is aborted if there are too many, or if its request takes too long."""

    max_connections: ClassVar[int] = 64

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
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

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for bytes that are not HTTP; abort if an answer was begun already."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # else it would answer, and h11 refuse a second answer
            self.cycle.message_event.set()
            self.transport.abort()
        elif self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
        else:
            super().send_400_response(msg)

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
