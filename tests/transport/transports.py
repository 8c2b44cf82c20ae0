"""The transports of links, for tests that must hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from celu.transport.carrier import Route
from celu.transport.preflight import Gateway


@dataclass(frozen=True)
class Transport:
    """A carrier and its settings; with `inner_tls`, as through a gateway."""

    carrier: str = "grpc"
    secure: bool = True
    inner_tls: bool = False
    streams: int = 1
    connections: int = 1

    def route(self, address: str) -> Route:
        gateway = Gateway("localhost") if self.inner_tls else None
        return Route(address, self.streams, self.connections, gateway)


TRANSPORTS = {
    "tls": Transport(),
    "insecure": Transport(secure=False),
    "inner-tls": Transport(inner_tls=True),
    "streams": Transport(streams=3),
    "channels": Transport(connections=2, streams=2),
    "inner-tls-streams": Transport(inner_tls=True, streams=32),
    "websocket": Transport("websocket"),
    "websocket-insecure": Transport("websocket", secure=False),
    "websocket-inner-tls": Transport("websocket", inner_tls=True),
}
