"""What a carrier is to the rest of celu: a listener and a connection, both giving links.

A carrier brings byte strings across, in order. Who comes and whether it may is decided in
`Admission`, the same for all carriers; what a message is, in `stream` and `wire`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from celu.errors import CertificateError, PeerLost
from celu.transport.inner_tls import InnerTls
from celu.transport.preflight import Gateway
from celu.transport.stream import Connection, StreamLink
from celu.transport.tls import Credentials, issued_for

NAME_KEY = "celu-name"  # says who calls; without a certificate of the connection it is a claim
OPEN_S = 10.0  # within which a caller must have said who it is, at each step on the way in
# Callers behind a gateway that have not proven who they are yet, at a time.
_UNPROVEN = 8


@dataclass(frozen=True)
class Route:
    """The way to a peer that listens: its address, or its gateway's.

    Over gRPC, `streams` and `connections` (channels with so many streams each) share the bytes.
    """

    address: str
    streams: int = 1
    connections: int = 1
    gateway: Gateway | None = None


class Listener(ABC):
    """Waits for peers at `port`."""

    port: int

    def __init__(self, arrivals: Admission) -> None:
        self.arrivals = arrivals

    @property
    def refused(self) -> deque[str]:
        """Why callers were turned away, the latest few."""
        return self.arrivals.refused

    def wait(self, connect_s: float) -> dict[str, StreamLink]:
        """The links, once every peer has come; raises PeerLost at the deadline."""
        return self.arrivals.wait(connect_s)

    @abstractmethod
    def stop(self) -> None:
        """Stop listening; links that are still open get a moment to end."""


class OutgoingConnection(Protocol):
    """One connection to a peer that listens, opened by us."""

    connection: Connection

    def stop(self) -> None:
        """End the connection."""
        ...


MakeConnection = Callable[[], Connection]


@dataclass(frozen=True)
class Carrier:
    """How listeners and connections are opened.

    `listen(address, arrivals)` raises ConfigError where the address cannot be had. `connect(route,
    name, peer, credentials, make_connection)` calls a peer, with `credentials` None in an insecure run, and
    raises PeerLost, CertificateError or ConfigError where that shows at once.
    """

    listen: Callable[[str, Admission], Listener]
    connect: Callable[[Route, str, str, Credentials | None, MakeConnection], OutgoingConnection]


class Admission:
    """Who is expected to call, who has come, and who was turned away.

    Behind a gateway the caller's certificate is shown inside (`sealed`), else the connection has
    it. `credentials` None is an insecure run: the name is taken for granted.
    """

    def __init__(
        self,
        links: Mapping[str, StreamLink],
        credentials: Credentials | None,
        *,
        behind_gateway: bool = False,
    ) -> None:
        self.peers = list(links)
        self.credentials = credentials
        self.behind_gateway = behind_gateway
        self.refused: deque[str] = deque(maxlen=5)  # for the error message; callers may be many
        self._links = links
        self._came = {name: threading.Event() for name in links}
        self._unproven: list[Connection] = []
        self._lock = threading.Lock()
        self._stopping = False

    def caller(self, claimed: str, certificate: bytes | None) -> str:
        """The name of a caller with this certificate (PEM); raises CertificateError."""
        if self.credentials is None or self.behind_gateway:
            if claimed not in self.peers:
                raise CertificateError("a caller gave a name not in the contract")
            return claimed
        for name in self.peers:
            if certificate and issued_for(certificate, name, self.credentials.authorities[name]):
                return name
        raise CertificateError("a caller's certificate is for none of the expected parties")

    def admit(self, name: str) -> Connection:
        """The end of a caller's connection; raises CertificateError where there are too many.

        Behind a gateway it is of use only once the caller has proven to be that party.
        """
        if self.credentials is None or not self.behind_gateway:
            return self._let_in(name)
        with self._lock:
            self._unproven = [
                connection for connection in self._unproven if not _is_proven(connection)
            ]
            if len(self._unproven) >= _UNPROVEN:
                raise CertificateError("too many callers that have not proven who they are")
            connection = self._let_in(name)
            connection.inner_tls = InnerTls(self.credentials, name, self._check_open)
            self._unproven.append(connection)
        return connection

    def turn_away(self, problem: str) -> None:
        """Note why a caller was not let in."""
        if problem not in self.refused:  # each of many stripes may have it
            self.refused.append(problem)

    def wait(self, connect_s: float) -> dict[str, StreamLink]:
        """The links, once every peer has come; raises PeerLost at the deadline."""
        give_up = time.monotonic() + connect_s
        for name, came in self._came.items():
            if not came.wait(max(0.0, give_up - time.monotonic())):
                raise PeerLost(self._nobody(name, connect_s))
        return dict(self._links)

    def stop(self) -> None:
        """Let nobody in any more, and close the links."""
        with self._lock:
            self._stopping = True
            unproven = self._unproven
        for connection in unproven:
            connection.cut(PeerLost("no longer listening"))
        for link in self._links.values():  # its threads wait for something to send, and would ever
            link.close()

    def _let_in(self, name: str) -> Connection:
        self._check_open()
        connection = self._links[name].connection(calls=False)
        connection.up = self._came[name].set
        return connection

    def _check_open(self) -> None:
        if self._stopping:
            raise CertificateError("no longer listening")

    def _nobody(self, name: str, connect_s: float) -> str:
        turned_away = f"; turned away: {'; '.join(self.refused)}" if self.refused else ""
        return (
            f"{name} did not connect with an acceptable certificate within "
            f"{connect_s:g} s (connect_s){turned_away}"
        )


def _is_proven(connection: Connection) -> bool:
    return connection.inner_tls is None or connection.inner_tls.is_over()
