"""Mutual TLS 1.3 between two parties, inside whatever brings byte strings across in order.

A gateway that ends the TLS of a connection then sees ciphertext alone, and each party still proves
to the other who it is with its own certificate. A sealed piece is one byte string, so pieces stay
pieces. What is said when is in `sealing`; here it meets the threads of a link, which hand over what
arrives and send what is given.

Outside the inner_tls a caller only says which party it claims to be. Inside, both certificates are
checked as in a direct connection; the side that was called then says one sealed word, so that
the caller knows that it is let in.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from celu.errors import CeluError, PeerLost
from celu.transport.inner_tls_engine import FLIGHT_BYTES, SEALED_BYTES, InnerTlsEngine
from celu.transport.tls import Credentials, answering, calling

__all__ = ["FLIGHT_BYTES", "HANDSHAKE_S", "SEALED_BYTES", "InnerTls"]
HANDSHAKE_S = 20.0


class InnerTls:
    """One end of a sealed conversation with `peer`; `admit` as in `InnerTlsEngine`."""

    def __init__(
        self, credentials: Credentials, peer: str, admit: Callable[[], None] | None = None
    ) -> None:
        self._peer = peer
        self._lock = threading.Lock()
        self._flights: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._outcome: Future[None] = Future()
        context = calling(credentials, peer) if admit is None else answering(credentials, [peer])
        self._sealing = InnerTlsEngine(
            context, peer, credentials.authorities[peer], self._flights.put, admit, self._lock
        )

    def flights(self) -> Generator[bytes, None, bool]:
        """What the handshake has to say, for the sending thread; whether it ended well."""
        give_up = time.monotonic() + HANDSHAKE_S
        while True:
            try:
                flight = self._flights.get(timeout=max(0.0, give_up - time.monotonic()))
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
        """See `InnerTlsEngine.inner_tls`."""
        return self._sealing.encrypt(piece)

    def opened(self, received: Iterator[bytes]) -> Iterator[bytes]:
        """The pieces of what arrives, after the handshake; for the receiving thread.

        Raises CertificateError where either side refuses the other, ProtocolError for what was
        not sealed by the peer, PeerLost where the stream ends before the handshake does.
        """
        try:
            self._handshake(received)
        except CeluError as error:
            self.fail(error)
            raise
        for data in received:
            piece = self._sealing.take(data)
            assert piece is not None  # as the handshake is over
            yield piece

    def wait(self, seconds: float) -> None:
        """Until the handshake has ended; raises what it failed with, PeerLost at the deadline."""
        try:
            self._outcome.result(seconds)
        except FutureTimeout:
            raise PeerLost(f"{self._peer} did not answer within {seconds:g} s") from None

    def is_over(self) -> bool:
        """Whether the handshake has ended, well or badly."""
        return self._outcome.done()

    def fail(self, error: CeluError) -> None:
        """The handshake ends here, unless it has already."""
        with self._lock:
            if self._outcome.done():
                return
            self._outcome.set_exception(error)
        self._flights.put(None)

    def _handshake(self, received: Iterator[bytes]) -> None:
        while not self._sealing.is_open:
            data = next(received, None)
            if data is None:
                raise PeerLost(f"{self._peer} closed the link in the TLS handshake")
            self._sealing.take(data)
        with self._lock:
            if self._outcome.done():
                raise PeerLost(f"the TLS handshake with {self._peer} came too late")
            self._outcome.set_result(None)
        self._flights.put(None)
