"""The ways in which links are carried, for tests that must hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from celu.transport.carrier import Route
from celu.transport.preflight import Gateway


@dataclass(frozen=True)
class Way:
    """How links are carried: `sealed` ones as if a gateway were in between."""

    carrier: str = "grpc"
    secure: bool = True
    sealed: bool = False
    streams: int = 1
    connections: int = 1

    def route(self, address: str) -> Route:
        gateway = Gateway("localhost") if self.sealed else None
        return Route(address, self.streams, self.connections, gateway)


WAYS = {
    "tls": Way(),
    "insecure": Way(secure=False),
    "sealed": Way(sealed=True),
    "streams": Way(streams=5),
    "channels": Way(connections=3, streams=2),
    "sealed-streams": Way(sealed=True, streams=32),
    "websocket": Way("websocket"),
    "websocket-insecure": Way("websocket", secure=False),
    "websocket-sealed": Way("websocket", sealed=True),
}
