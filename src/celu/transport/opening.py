"""Links to all peers, in whichever direction and over whichever carrier.

This is where a party's network begins and ends: it knocks, calls, listens and waits, and closes
everything on leaving.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from celu.errors import PeerLost
from celu.transport import grpc_carrier
from celu.transport.carrier import Arrivals, Carrier, Route
from celu.transport.carrier import Connection as AnyConnection
from celu.transport.emulation import Line
from celu.transport.knock import RETRY_S, knock, knock_at_gateway
from celu.transport.sealed import HANDSHAKE_S
from celu.transport.stream import StreamLink
from celu.transport.tls import Identity


@dataclass(frozen=True)
class Endpoint:
    """How one party is reached and reaches the others.

    `connect` maps peers that listen to the way there; `accept` names those that come to us, at
    `listen`, which is plain HTTP for our own gateway where `behind_gateway`. `keys` are our
    certificate, our key and each peer's authority; None is an insecure run. `line` makes an
    emulated line for each link.
    """

    name: str
    listen: str | None = None
    accept: tuple[str, ...] = ()
    connect: Mapping[str, Route] = field(default_factory=dict)
    keys: tuple[Path, Path, Mapping[str, Path]] | None = None
    carrier: str = "grpc"
    behind_gateway: bool = False
    connect_s: float = 300.0
    deadline_s: float = 120.0
    line: Callable[[], Line | None] = lambda: None


@contextmanager
def open_links(
    endpoint: Endpoint, listening: Callable[[int], None] = lambda port: None
) -> Iterator[dict[str, StreamLink]]:
    """A link to every peer, in whichever direction; closed on leaving.

    `listening` is told the port once we can be reached. Raises PeerLost where a peer does not come
    or answer in time, CertificateError where one side refuses the other, ConfigError where the
    carriers do not match or the carrier is not installed.
    """
    identity = Identity.read(*endpoint.keys) if endpoint.keys else None
    carrier = find_carrier(endpoint.carrier)

    def make_link(peer: str) -> StreamLink:
        return StreamLink(peer, deadline_s=endpoint.deadline_s, line=endpoint.line())

    with ExitStack() as stack:
        links: dict[str, StreamLink] = {}
        listener = None
        if endpoint.accept:
            assert endpoint.listen is not None  # settings are checked: whoever accepts, listens
            arrivals = Arrivals(
                list(endpoint.accept), identity, make_link, behind_gateway=endpoint.behind_gateway
            )
            listener = carrier.listen(endpoint.listen, arrivals)
            stack.callback(listener.stop)
            listening(listener.port)
        for peer, route in endpoint.connect.items():
            if route.gateway is not None:
                knock_at_gateway(
                    route.address, peer, route.gateway, endpoint.carrier, endpoint.connect_s
                )
            elif identity is not None:
                knock(route.address, peer, identity, endpoint.carrier, endpoint.connect_s)
            connection = _persist(
                lambda route=route, peer=peer: carrier.connect(  # type: ignore[misc]
                    route, endpoint.name, peer, identity, make_link
                ),
                endpoint.connect_s,
            )
            stack.callback(connection.stop)
            stack.callback(connection.link.close)
            links[peer] = connection.link
        if listener is not None:
            links |= listener.wait(endpoint.connect_s)
        yield links


def find_carrier(name: str) -> Carrier:
    """The carrier of a name; raises ConfigError where what it needs is not installed."""
    if name == "websocket":
        from celu.transport.websocket_carrier import Connection, Listener

        return Carrier(Listener, Connection)
    return Carrier(grpc_carrier.Listener, grpc_carrier.Connection)


def _persist(connect: Callable[[], AnyConnection], connect_s: float) -> AnyConnection:
    """A connection whose peer has answered; a peer that is not there yet is tried again.

    A gateway answers for a peer that is not there yet, so that knocking is not enough.
    """
    give_up = time.monotonic() + connect_s
    while True:
        try:
            connection = connect()
            if connection.link.seal is None:
                return connection
            try:
                connection.link.seal.wait(HANDSHAKE_S)
                return connection
            except BaseException:
                connection.stop()
                connection.link.close()
                raise
        except PeerLost as error:
            if time.monotonic() >= give_up:
                raise PeerLost(
                    f"{error} (tried for {connect_s:g} s, connect_s); is its side running, with "
                    "the same carrier, and does its gateway pass on what arrives?"
                ) from error
        time.sleep(RETRY_S)
