"""One session after another with each peer, for a process that outlives its peers' processes.

`open_links` opens all links once, and an error ends them. Here each peer has a thread that connects
without a deadline, runs a session, and starts over when the session ends for any reason: the
peer restarted, the link was down for too long, or the peer violated the protocol.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from celu.errors import CeluError
from celu.transport.carrier import Admission, Listener, Route
from celu.transport.connect import (
    Dialer,
    Endpoint,
    check_route,
    find_carrier,
    start_reconnect_thread,
)
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message
from celu.transport.reconnect import backoff
from celu.transport.stream import StreamLink
from celu.transport.tls import Credentials

# A session waits for asks as long as there are none: heartbeats notice a peer that is gone.
_IDLE_S = 1e8
_STOP_S = 15.0  # for a session to end
_POLL_S = 0.2
_PREFLIGHT_S = 2.0  # of one attempt; there is always another one

Session = Callable[[StreamLink], None]


class Sessions:
    """A context manager that runs `session(link)` again and again, on one thread for each peer.

    `session` returns or raises a CeluError when it has ended; `on_error` is called with that
    error, and with errors of connecting. On exit the peers receive GOODBYE, and the links are
    closed, which ends the sessions. Entering raises ConfigError if the address to listen at is not
    available, CertificateError for unreadable keys.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        session: Session,
        on_error: Callable[[str, CeluError], None],
        on_listening: Callable[[int], None] = lambda port: None,
    ) -> None:
        self._endpoint = replace(endpoint, deadline_s=_IDLE_S)
        self._session = session
        self._on_error = on_error
        self._on_listening = on_listening
        self._stopping = threading.Event()
        self._listener: Listener | None = None
        self._lock = threading.Lock()  # guards the links
        self._links: dict[str, StreamLink] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Sessions:
        endpoint = self._endpoint
        self._credentials = Credentials.read(*endpoint.keys) if endpoint.keys else None
        self._carrier = find_carrier(endpoint.carrier)
        peers = (*endpoint.connect, *endpoint.accept)
        self._links = {peer: endpoint.new_link(peer) for peer in peers}
        if endpoint.accept:
            assert endpoint.listen is not None  # the settings require it of a party that accepts
            admission = Admission(
                {peer: self._links[peer] for peer in endpoint.accept},
                self._credentials,
                behind_gateway=endpoint.behind_gateway,
                on_event=endpoint.on_event,
            )
            self._listener = self._carrier.listen(endpoint.listen, admission)
            self._on_listening(self._listener.port)
        for peer in peers:
            thread = threading.Thread(
                target=self._run, args=(peer,), name=f"session-{peer}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        with self._lock:
            links = list(self._links.values())
        for link in links:
            if not link.is_over:
                with suppress(CeluError):
                    run_blocking(link.send(Message(Kind.GOODBYE)))
        for link in links:
            link.close()
        for thread in self._threads:
            thread.join(_STOP_S)
        if self._listener is not None:
            self._listener.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether the context manager is exiting."""
        return self._stopping.is_set()

    def _run(self, peer: str) -> None:
        rng = random.Random()  # noqa: S311 - jitter, not security
        pauses = backoff(rng)
        while not self._stopping.is_set():
            link = self._links[peer]
            dialer = None
            try:
                dialer = self._connect(peer, link)
                if not self._stopping.is_set():
                    start_reconnect_thread(link, dialer)
                    self._session(link)
                    pauses = backoff(rng)  # it was connected: the next attempt is not a retry
            except CeluError as error:
                if not self._stopping.is_set():
                    self._on_error(peer, error)
            except Exception as error:  # a bug in a session must not end the others, or this thread
                self._on_error(peer, CeluError(f"unexpected {type(error).__name__}: {error}"))
            finally:
                link.close()
                if dialer is not None:
                    dialer.stop()
            if not self._stopping.wait(next(pauses)):
                self._renew(peer)

    def _renew(self, peer: str) -> None:
        """Replace a link that is over."""
        with self._lock:
            self._links[peer] = link = self._endpoint.new_link(peer)
        if self._stopping.is_set():
            link.close()
        if self._listener is not None and peer in self._endpoint.accept:
            self._listener.admission.replace(link)

    def _connect(self, peer: str, link: StreamLink) -> Dialer | None:
        """Wait until a peer is connected; returns the dialer of a peer that listens."""
        route = self._endpoint.connect.get(peer)
        if route is not None:
            return self._dial(peer, link, route)
        assert self._listener is not None
        while not self._stopping.is_set():
            if self._listener.admission.wait_for(peer, _POLL_S):
                break
        return None

    def _dial(self, peer: str, link: StreamLink, route: Route) -> Dialer:
        endpoint = self._endpoint
        check_route(endpoint, peer, route, self._credentials, _PREFLIGHT_S)
        dialer = Dialer(self._carrier, route, endpoint.name, self._credentials, link)
        try:
            dialer.dial()
        except BaseException:
            dialer.stop()
            raise
        return dialer
