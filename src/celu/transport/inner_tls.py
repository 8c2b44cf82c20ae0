"""Inner TLS: mutual TLS 1.3 between two parties, inside a connection through a gateway.

A gateway that terminates the outer TLS sees only ciphertext, and the parties still authenticate
each other with their own certificates. One piece is encrypted to one byte string. The protocol is
in `inner_tls_engine`; this module connects it to the two threads of a connection.

Outside the inner TLS a client only claims a name. Inside, both certificates are checked as in a
direct connection; then the server sends one encrypted welcome, so the client knows it is admitted.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from celu.errors import CeluError, PeerLost
from celu.transport.inner_tls_engine import (
    MAX_ENCRYPTED_BYTES,
    MAX_FLIGHT_BYTES,
    InnerTlsEngine,
)
from celu.transport.tls import Credentials, client_context, server_context

__all__ = ["HANDSHAKE_S", "MAX_ENCRYPTED_BYTES", "MAX_FLIGHT_BYTES", "InnerTls"]
HANDSHAKE_S = 20.0


class InnerTls:
    """One end of the inner TLS with `peer`; for `admit`, see `InnerTlsEngine`."""

    def __init__(
        self, credentials: Credentials, peer: str, admit: Callable[[], None] | None = None
    ) -> None:
        self._peer = peer
        self._lock = threading.Lock()
        self._flights: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None: handshake over
        self._outcome: Future[None] = Future()
        if admit is None:
            context = client_context(credentials, peer)
        else:
            context = server_context(credentials, [peer])
        self._engine = InnerTlsEngine(
            context, peer, credentials.authorities[peer], self._flights.put, admit, self._lock
        )

    def handshake_flights(self) -> Generator[bytes, None, bool]:
        """Yield what the handshake sends, on the sending thread; returns whether it succeeded."""
        give_up_at = time.monotonic() + HANDSHAKE_S
        while True:
            try:
                flight = self._flights.get(timeout=max(0.0, give_up_at - time.monotonic()))
            except queue.Empty:
                self.fail(
                    PeerLost(
                        f"{self._peer} did not complete the TLS handshake inside the gateway's "
                        f"connection within {HANDSHAKE_S:g} s"
                    )
                )
                return False
            if flight is None:
                return self._outcome.exception(0) is None
            yield flight

    def encrypt(self, piece: bytes) -> bytes:
        """See `InnerTlsEngine.encrypt`."""
        return self._engine.encrypt(piece)

    def decrypted(self, received: Iterator[bytes]) -> Iterator[bytes]:
        """Do the handshake, then yield the decrypted pieces, on the receiving thread.

        Raises CertificateError if either side rejects the other, ProtocolError for bytes that the
        peer did not encrypt, PeerLost if the stream ends before the handshake does.
        """
        try:
            self._handshake(received)
        except CeluError as error:
            self.fail(error)
            raise
        for data in received:
            piece = self._engine.receive(data)
            assert piece is not None  # because the handshake is over
            yield piece

    def wait(self, seconds: float) -> None:
        """Wait for the handshake; raises the error it failed with, PeerLost at the deadline."""
        try:
            self._outcome.result(seconds)
        except FutureTimeout:
            raise PeerLost(f"{self._peer} did not answer within {seconds:g} s") from None

    def handshake_ended(self) -> bool:
        """Whether the handshake has succeeded or failed."""
        return self._outcome.done()

    def is_proven(self) -> bool:
        """Whether the handshake has succeeded, so that the peer has proven its name."""
        return self._outcome.done() and self._outcome.exception() is None

    @property
    def problem(self) -> CeluError | None:
        """Why the handshake failed, if it did."""
        error = self._outcome.exception() if self._outcome.done() else None
        return error if isinstance(error, CeluError) else None

    def fail(self, error: CeluError) -> None:
        """Fail the handshake, unless it has ended already."""
        with self._lock:
            if self._outcome.done():
                return
            self._outcome.set_exception(error)
        self._flights.put(None)

    def _handshake(self, received: Iterator[bytes]) -> None:
        while not self._engine.is_open:
            data = next(received, None)
            if data is None:
                raise PeerLost(f"{self._peer} closed the link during the TLS handshake")
            self._engine.receive(data)
        with self._lock:
            if self._outcome.done():
                raise PeerLost(f"the TLS handshake with {self._peer} completed too late")
            self._outcome.set_result(None)
        self._flights.put(None)
