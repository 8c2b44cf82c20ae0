"""Open the links of a party to all its peers, and reconnect them until they are closed.

The entry point of the network: runs the preflight checks, dials, listens, waits for the peers, and
closes everything on exit. `stream` decides what a link sends over a connection.
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
from celu.transport.preflight import RETRY_S, preflight, preflight_gateway, preflight_insecure
from celu.transport.reconnect import backoff
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials


@dataclass(frozen=True)
class Endpoint:
    """How a party reaches its peers and is reached by them.

    `connect` maps the peers that we dial to their routes; `accept` names those that dial us, at
    `listen`, which is plain HTTP for our own gateway if `behind_gateway`. `keys` are our
    certificate, our key and each peer's authority; None: an insecure run. `make_emulator` returns
    an emulator for each link; `on_event` is called when a link goes down or comes up again, and
    when a client is rejected.
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
    make_emulator: Callable[[], LinkEmulator | None] = lambda: None
    on_event: Callback = ignore

    def new_link(self, peer: str) -> StreamLink:
        """A link to a peer, not connected yet."""
        return StreamLink(
            peer,
            deadline_s=self.deadline_s,
            outage_s=self.outage_s,
            heartbeat_s=self.heartbeat_s,
            emulator=self.make_emulator(),
            on_event=self.on_event,
        )


@contextmanager
def open_links(
    endpoint: Endpoint, on_listening: Callable[[int], None] = lambda port: None
) -> Iterator[dict[str, StreamLink]]:
    """Connect to every peer; reconnect broken links until they are closed on exit.

    `on_listening` is called with the port once peers can connect. Raises PeerLost if a peer does
    not connect or answer in time, CertificateError if one side rejects the other, ConfigError if
    the carriers differ or the carrier is not installed.
    """
    credentials = Credentials.read(*endpoint.keys) if endpoint.keys else None
    carrier = find_carrier(endpoint.carrier)
    links = {peer: endpoint.new_link(peer) for peer in (*endpoint.connect, *endpoint.accept)}
    with ExitStack() as stack:
        listener = None
        if endpoint.accept:
            assert endpoint.listen is not None  # the settings require it of a party that accepts
            admission = Admission(
                {peer: links[peer] for peer in endpoint.accept},
                credentials,
                behind_gateway=endpoint.behind_gateway,
                on_event=endpoint.on_event,
            )
            listener = carrier.listen(endpoint.listen, admission)
            stack.callback(listener.stop)
            on_listening(listener.port)
        for peer, route in endpoint.connect.items():
            check_route(endpoint, peer, route, credentials, endpoint.connect_s)
            dialer = Dialer(carrier, route, endpoint.name, credentials, links[peer])
            stack.callback(dialer.stop)
            stack.callback(links[peer].close)
            dialer.dial_until(endpoint.connect_s)
            thread = start_reconnect_thread(links[peer], dialer)
            stack.callback(thread.join, HANDSHAKE_S)  # it may be in the middle of an attempt
            stack.callback(links[peer].close)
        if listener is not None:
            listener.wait(endpoint.connect_s)
            for peer in endpoint.accept:
                start_reconnect_thread(links[peer], None)
        yield links


def check_route(
    endpoint: Endpoint, peer: str, route: Route, credentials: Credentials | None, connect_s: float
) -> None:
    """Run the preflight checks of a route; raises what they raise."""
    if route.gateway is not None:
        preflight_gateway(route.address, peer, route.gateway, endpoint.carrier, connect_s)
    elif credentials is not None:
        preflight(route.address, peer, credentials, endpoint.carrier, connect_s)
    else:
        preflight_insecure(route.address, peer, endpoint.carrier, connect_s)


def find_carrier(name: str) -> Carrier:
    """Look up a carrier by name; raises ConfigError if its package is not installed."""
    if name == "websocket":
        from celu.transport.websocket_carrier import Listener as WebSocketListener
        from celu.transport.websocket_carrier import OutgoingConnection as WebSocketConnection

        return Carrier(WebSocketListener, WebSocketConnection)
    return Carrier(grpc_carrier.Listener, grpc_carrier.OutgoingConnection)


class Dialer:
    """Connects to a peer that listens; each `dial` replaces the previous connection."""

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
        self._credentials = credentials
        self._link = link
        self._outgoing: OutgoingConnection | None = None

    def dial(self) -> None:
        """Connect and wait for the peer's greeting; raises a CeluError if that fails."""
        self.stop()
        link = self._link
        self._outgoing = outgoing = self._carrier.connect(
            self._route,
            self._name,
            link.peer,
            self._credentials,
            lambda: link.new_connection(dials=True),
        )
        try:
            link.wait_until_greeted(outgoing.connection, HANDSHAKE_S)
        except BaseException as problem:
            reason = problem if isinstance(problem, CeluError) else PeerLost("interrupted")
            outgoing.connection.abort(reason)
            self.stop()
            raise

    def dial_until(self, connect_s: float) -> None:
        """Dial for the first time, and retry until the peer answers.

        The preflight does not check that: a gateway answers before the peer behind it does.
        """
        give_up_at = time.monotonic() + connect_s
        while True:
            try:
                return self.dial()
            except PeerLost as error:
                if time.monotonic() >= give_up_at:
                    raise PeerLost(
                        f"{error} (tried for {connect_s:g} s, connect_s); is its side running, "
                        "with the same carrier, and does its gateway forward the requests?"
                    ) from error
            time.sleep(RETRY_S)

    def stop(self) -> None:
        """End the connection, if there is one."""
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            outgoing.stop()


def start_reconnect_thread(link: StreamLink, dialer: Dialer | None) -> threading.Thread:
    """Start a thread that drops silent connections and, with a dialer, dials again."""
    thread = threading.Thread(
        target=_reconnect_thread, args=(link, dialer), name=f"reconnect-{link.peer}", daemon=True
    )
    thread.start()
    return thread


def _reconnect_thread(link: StreamLink, dialer: Dialer | None) -> None:
    try:
        _reconnect_loop(link, dialer)
    except Exception as error:  # a bug: fail the link, or the session waits until its deadline
        problem = PeerLost(
            f"cannot reconnect to {link.peer}: unexpected {type(error).__name__}; "
            "start again to resume, and please report this"
        )
        problem.__cause__ = error
        link.fail(problem)


def _reconnect_loop(link: StreamLink, dialer: Dialer | None) -> None:
    rng = random.Random()  # noqa: S311 - jitter, not security
    pauses = backoff(rng)
    while not link.is_over:
        link.drop_silent_connections()
        if dialer is None or not link.is_down:
            link.sleep(link.heartbeat_s / 4, until_down=dialer is not None)
            pauses = backoff(rng)
            continue
        link.sleep(next(pauses))
        try:
            dialer.dial()
        except CeluError:  # retried until outage_s; the link then reports the last reason
            continue
