"""Links to all peers, in whichever direction and over whichever carrier.

This is where a party's network begins and ends: it knocks, calls, listens and waits, and closes
everything on leaving.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from celu.errors import CeluError, PeerLost
from celu.events import Callback, ignore
from celu.transport import grpc_carrier
from celu.transport.carrier import Admission, Carrier, OutgoingConnection, Route
from celu.transport.emulation import LinkEmulator
from celu.transport.inner_tls import HANDSHAKE_S
from celu.transport.preflight import RETRY_S, preflight, preflight_gateway
from celu.transport.reconnect import backoff
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials


@dataclass(frozen=True)
class Endpoint:
    """How one party is reached and reaches the others.

    `connect` maps peers that listen to the way there; `accept` names those that come to us, at
    `listen`, which is plain HTTP for our own gateway where `behind_gateway`. `keys` are our
    certificate, our key and each peer's authority; None is an insecure run. `line` makes an
    emulated line for each link; `notice` is told when one goes down or comes up again.
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
    outage_s: float = 600.0
    heartbeat_s: float = 10.0
    line: Callable[[], LinkEmulator | None] = lambda: None
    notice: Callback = ignore

    def link(self, peer: str) -> StreamLink:
        """A link to a peer, with nothing connected yet."""
        return StreamLink(
            peer,
            deadline_s=self.deadline_s,
            outage_s=self.outage_s,
            heartbeat_s=self.heartbeat_s,
            line=self.line(),
            notice=self.notice,
        )


@contextmanager
def open_links(
    endpoint: Endpoint, listening: Callable[[int], None] = lambda port: None
) -> Iterator[dict[str, StreamLink]]:
    """A link to every peer, in whichever direction, kept up until it is closed on leaving.

    `listening` is told the port once we can be reached. Raises PeerLost where a peer does not come
    or answer in time, CertificateError where one side refuses the other, ConfigError where the
    carriers do not match or the carrier is not installed.
    """
    credentials = Credentials.read(*endpoint.keys) if endpoint.keys else None
    carrier = find_carrier(endpoint.carrier)
    links = {peer: endpoint.link(peer) for peer in (*endpoint.connect, *endpoint.accept)}
    with ExitStack() as stack:
        listener = None
        if endpoint.accept:
            assert endpoint.listen is not None  # settings are checked: whoever accepts, listens
            arrivals = Admission(
                {peer: links[peer] for peer in endpoint.accept},
                credentials,
                behind_gateway=endpoint.behind_gateway,
            )
            listener = carrier.listen(endpoint.listen, arrivals)
            stack.callback(listener.stop)
            listening(listener.port)
        for peer, route in endpoint.connect.items():
            if route.gateway is not None:
                preflight_gateway(
                    route.address, peer, route.gateway, endpoint.carrier, endpoint.connect_s
                )
            elif credentials is not None:
                preflight(route.address, peer, credentials, endpoint.carrier, endpoint.connect_s)
            caller = Caller(carrier, route, endpoint.name, credentials, links[peer])
            stack.callback(caller.stop)
            stack.callback(links[peer].close)
            caller.persist(endpoint.connect_s)
            keeper = _keep(links[peer], caller)
            stack.callback(keeper.join, HANDSHAKE_S)  # it may be about to connect anew
            stack.callback(links[peer].close)
        if listener is not None:
            listener.wait(endpoint.connect_s)
            for peer in endpoint.accept:
                _keep(links[peer], None)
        yield links


def find_carrier(name: str) -> Carrier:
    """The carrier of a name; raises ConfigError where what it needs is not installed."""
    if name == "websocket":
        from celu.transport.websocket_carrier import Listener as WebSocketListener
        from celu.transport.websocket_carrier import OutgoingConnection as WebSocketConnection

        return Carrier(WebSocketListener, WebSocketConnection)
    return Carrier(grpc_carrier.Listener, grpc_carrier.OutgoingConnection)


class Caller:
    """Connects to a peer that listens, and connects anew where a connection has ended."""

    def __init__(
        self,
        carrier: Carrier,
        route: Route,
        name: str,
        credentials: Credentials | None,
        link: StreamLink,
    ) -> None:
        self._carrier = carrier
        self._route = route
        self._name = name
        self._identity = credentials
        self._link = link
        self._connection: OutgoingConnection | None = None

    def call(self) -> None:
        """Connect, and wait to be greeted; raises why that did not come about."""
        self.stop()
        link = self._link
        self._connection = connection = self._carrier.connect(
            self._route, self._name, link.peer, self._identity, lambda: link.connection(calls=True)
        )
        try:
            link.wait_up(connection.connection, HANDSHAKE_S)
        except BaseException as problem:
            reason = problem if isinstance(problem, CeluError) else PeerLost("given up")
            connection.connection.cut(reason)
            self.stop()
            raise

    def persist(self, connect_s: float) -> None:
        """Connect for the first time; a peer that is not there yet is tried again.

        A gateway answers for a peer that is not there yet, so that knocking is not enough.
        """
        give_up = time.monotonic() + connect_s
        while True:
            try:
                return self.call()
            except PeerLost as error:
                if time.monotonic() >= give_up:
                    raise PeerLost(
                        f"{error} (tried for {connect_s:g} s, connect_s); is its side running, "
                        "with the same carrier, and does its gateway pass on what arrives?"
                    ) from error
            time.sleep(RETRY_S)

    def stop(self) -> None:
        """Let go of the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.stop()


def _keep(link: StreamLink, caller: Caller | None) -> threading.Thread:
    """Have a thread end connections that went silent, and make new ones where that is ours."""
    thread = threading.Thread(
        target=_keep_up, args=(link, caller), name=f"keep-{link.peer}", daemon=True
    )
    thread.start()
    return thread


def _keep_up(link: StreamLink, caller: Caller | None) -> None:
    try:
        _tend(link, caller)
    except Exception as error:  # unforeseen: the program must not wait for what nobody does
        problem = PeerLost(
            f"the link to {link.peer} is not kept up any more, for {type(error).__name__} came up; "
            "start again to go on, and report it"
        )
        problem.__cause__ = error
        link.give_up(problem)


def _tend(link: StreamLink, caller: Caller | None) -> None:
    chance = random.Random()  # noqa: S311 - spreads attempts in time, guards nothing
    attempts = backoff(chance)
    while not link.is_over:
        link.drop_if_silent()
        if caller is None or not link.is_down:
            link.pause(link.heartbeat_s / 4, until_down=caller is not None)
            attempts = backoff(chance)
            continue
        link.pause(next(attempts))
        try:
            caller.call()
        except CeluError:  # tried again until the link's patience ends, which names the last
            continue
