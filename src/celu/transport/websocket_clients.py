"""The open connections of a WebSocket listener, bounded in number from the moment of `accept`.

asyncio accepts every connection and reports one to its protocol only after the TLS handshake. Until
then it occupies one of the files that this process may open, so we count in `accept`.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

MAX_CLIENTS = 256  # open connections of a listener, with or without a complete request
BACKLOG = 100  # that asyncio accepts at a time, before it closes any


class Clients:
    """The connections that a listener has accepted, oldest first.

    If there are too many, the oldest that has not sent its whole request is disconnected: a
    handshake and a request take a peer less time than a crowd takes to replace them all.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, socket.socket] = {}  # by descriptor
        self._identified: dict[int, socket.socket] = {}

    def __len__(self) -> int:
        self._forget_closed()
        return len(self._waiting) + len(self._identified)

    def add(self, client: socket.socket) -> None:
        """Count a new connection; disconnect the oldest, or this one if all are identified."""
        self._forget_closed()
        self._waiting[client.fileno()] = client
        if len(self._waiting) + len(self._identified) > MAX_CLIENTS:
            _disconnect(self._waiting.pop(next(iter(self._waiting))))

    def identify(self, transport: asyncio.BaseTransport) -> None:
        """Count a connection among those that never make room: its request was accepted."""
        descriptor = transport.get_extra_info("socket").fileno()
        if descriptor in self._waiting:
            self._identified[descriptor] = self._waiting.pop(descriptor)

    def disconnect_waiting(self) -> None:
        """Disconnect those that have not sent their request, and may never do so."""
        while self._waiting:
            _disconnect(self._waiting.popitem()[1])

    def _forget_closed(self) -> None:
        for clients in (self._waiting, self._identified):
            for descriptor in [number for number, open_ in clients.items() if open_.fileno() < 0]:
                del clients[descriptor]


class ListeningSocket(socket.socket):
    """A socket that listens and counts what it accepts; raises OSError if the address is taken."""

    def __init__(self, family: int, address: Any, clients: Clients) -> None:
        listening = socket.create_server(address, family=family, backlog=BACKLOG)
        super().__init__(fileno=listening.detach())
        self._clients = clients

    def accept(self) -> tuple[socket.socket, Any]:
        """Called by asyncio."""
        client, address = super().accept()
        self._clients.add(client)
        return client, address


def _disconnect(client: socket.socket) -> None:
    """Let asyncio read an end of file, in any state of the handshake, and close the connection."""
    with suppress(OSError):  # it is disconnected already
        client.shutdown(socket.SHUT_RDWR)
