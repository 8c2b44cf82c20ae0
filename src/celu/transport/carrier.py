"""The carrier interface: a listener, an outgoing connection, and the admission of clients.

A carrier moves byte strings, called pieces, in order; `stream` and `wire` interpret them.
`Admission` decides, in the same way for all carriers, which clients may connect.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from celu.errors import CeluError, CertificateError, PeerLost
from celu.events import Callback, ClientRejected, ignore
from celu.text import printable
from celu.transport.connection import Connection
from celu.transport.inner_tls import InnerTls
from celu.transport.preflight import Gateway
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials, is_issued_for

NAME_KEY = "celu-name"  # the client's name: only a claim, unless its certificate has it too
IDENTIFY_S = 10.0  # deadline of each step in which a client identifies itself
# Clients behind a gateway whose inner TLS handshake may be in progress at the same time.
_MAX_UNAUTHENTICATED = 8
_MAX_REPORTED = 20  # rejected clients, of one listener


@dataclass(frozen=True)
class Route:
    """How to reach a peer that listens: its address or its gateway's.

    Over gRPC the pieces are striped over `connections` channels with `streams` streams each.
    """

    address: str
    streams: int = 1
    connections: int = 1
    gateway: Gateway | None = None


class Listener(ABC):
    """Accepts peers at `port`."""

    port: int

    def __init__(self, admission: Admission) -> None:
        self.admission = admission

    @property
    def rejections(self) -> deque[str]:
        """Why the latest few clients were rejected."""
        return self.admission.rejections

    def wait(self, connect_s: float) -> dict[str, StreamLink]:
        """Return the links once every peer has connected; raises PeerLost at the deadline."""
        return self.admission.wait(connect_s)

    @abstractmethod
    def stop(self) -> None:
        """Stop listening and close the links."""


class OutgoingConnection(Protocol):
    """One connection to a peer that listens, dialed by us."""

    connection: Connection

    def stop(self) -> None:
        """End the connection."""
        ...


MakeConnection = Callable[[], Connection]


@dataclass(frozen=True)
class Carrier:
    """How to listen and how to connect.

    `listen(address, admission)` raises ConfigError if the address is not available.
    `connect(route, name, peer, credentials, make_connection)` dials a peer; without `credentials`
    the run is insecure. It raises PeerLost, CertificateError or ConfigError if it fails at once.
    """

    listen: Callable[[str, Admission], Listener]
    connect: Callable[[Route, str, str, Credentials | None, MakeConnection], OutgoingConnection]


class Admission:
    """Which clients are expected, which have connected, and why others were rejected.

    The certificate of a client comes from its connection or, behind a gateway, from the inner TLS.
    Without `credentials` the run is insecure, and the name of a client is not verified. `on_event`
    is called with each `ClientRejected`, on any thread.
    """

    def __init__(
        self,
        links: Mapping[str, StreamLink],
        credentials: Credentials | None,
        *,
        behind_gateway: bool = False,
        on_event: Callback = ignore,
    ) -> None:
        self.peers = list(links)
        self.credentials = credentials
        self.behind_gateway = behind_gateway
        self.rejections: deque[str] = deque(maxlen=5)  # for error messages, so only the latest
        self._on_event = on_event
        self._num_reported = 0
        self._links = dict(links)
        self._connected = {name: threading.Event() for name in links}
        self._unauthenticated: list[Connection] = []
        self._lock = threading.Lock()
        self._stopping = False

    def authenticate(self, claimed: str, certificate: bytes | None) -> str:
        """The name of a client with this certificate (PEM); raises CertificateError.

        Behind a gateway this is only a claim, which the inner TLS of `admit` verifies.
        """
        if self.credentials is None or self.behind_gateway:
            if claimed not in self.peers:
                raise CertificateError("a client sent a name not in the contract")
            return claimed
        for name in self.peers:
            if certificate and is_issued_for(certificate, name, self.credentials.authorities[name]):
                return name
        raise CertificateError("a client's certificate is for none of the expected parties")

    def admit(self, name: str) -> Connection:
        """A connection for a client; raises PeerLost if its link cannot have another one now.

        Behind a gateway, the link has nothing of the connection before the client has proven its
        name. If too many clients have not, the oldest of them is disconnected: so strangers can
        delay a peer, which tries again, and not keep it out.
        """
        self._check_listening()
        connection = self._links[name].make_connection(dials=False)
        connection.on_greeted = self._connected[name].set
        if self.credentials is None or not self.behind_gateway:
            self._add_to_link(connection)
            return connection
        connection.inner_tls = InnerTls(
            self.credentials, name, lambda: self._add_to_link(connection)
        )
        with self._lock:
            waiting = [c for c in self._unauthenticated if not _handshake_ended(c)]
            evicted = waiting[: max(0, len(waiting) + 1 - _MAX_UNAUTHENTICATED)]
            self._unauthenticated = [*waiting[len(evicted) :], connection]
        for oldest in evicted:
            oldest.abort(PeerLost("too many clients at the same time; try again later"))
        return connection

    def note_rejection(self, error: CeluError, address: str = "") -> None:
        """Record why a client was rejected; the reason may quote it.

        It is also reported at once, unless it is a PeerLost: that client may try again.
        """
        problem = printable(str(error))
        with self._lock:
            if problem in self.rejections:  # each of many stripes may report the same
                return
            self.rejections.append(problem)
            if isinstance(error, PeerLost) or self._stopping:
                return
            self._num_reported += 1
            if self._num_reported > _MAX_REPORTED:  # strangers must not fill the log
                return
        self._on_event(ClientRejected(reason=problem, address=printable(address)))

    @property
    def is_complete(self) -> bool:
        """Whether every peer has connected."""
        return all(connected.is_set() for connected in self._connected.values())

    def wait(self, connect_s: float) -> dict[str, StreamLink]:
        """Return the links once every peer has connected; raises PeerLost at the deadline."""
        give_up_at = time.monotonic() + connect_s
        for name, connected in self._connected.items():
            if not connected.wait(max(0.0, give_up_at - time.monotonic())):
                raise PeerLost(self._timeout_message(name, connect_s))
        return dict(self._links)

    def replace(self, link: StreamLink) -> None:
        """Let a peer's next connection start a new session; its previous link must be over."""
        self._connected[link.peer].clear()
        self._links[link.peer] = link
        if self._stopping:
            link.close()

    def wait_for(self, peer: str, seconds: float) -> bool:
        """Wait until a peer has connected; False after this time."""
        return self._connected[peer].wait(seconds)

    def stop(self) -> None:
        """Admit no more clients, and close the links."""
        with self._lock:
            self._stopping = True
            unauthenticated = self._unauthenticated
        for connection in unauthenticated:
            connection.abort(PeerLost("no longer listening"))
        for link in self._links.values():  # else their threads wait for messages forever
            link.close()

    def _add_to_link(self, connection: Connection) -> None:
        """Let a client that has proven its name be one of its link's connections."""
        self._check_listening()
        self._links[connection.peer].add_connection(connection, dials=False)

    def _check_listening(self) -> None:
        if self._stopping:
            raise CertificateError("no longer listening")

    def _timeout_message(self, name: str, connect_s: float) -> str:
        rejected = f"; rejected clients: {'; '.join(self.rejections)}" if self.rejections else ""
        how = "with an acceptable certificate"
        if self.credentials is None:
            how = "without TLS, as insecure = true says here (are insecure and carrier the same?),"
        return f"{name} did not connect {how} within {connect_s:g} s (connect_s){rejected}"


def _handshake_ended(connection: Connection) -> bool:
    return connection.inner_tls is None or connection.inner_tls.handshake_ended()
