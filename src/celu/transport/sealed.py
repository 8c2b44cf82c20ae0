"""Mutual TLS 1.3 between two parties, inside whatever brings byte strings across in order.

A gateway that ends the TLS of a connection then sees ciphertext alone, and each party still proves
to the other who it is with its own certificate. A sealed piece is one byte string, so pieces stay
pieces. It moves nothing itself: a link hands it what arrives, and sends what it gives.

Outside the seal a caller only says which party it claims to be. Inside, both certificates are
checked as in a direct connection; the side that was called then says one sealed word, so that
the caller knows that it is let in.
"""

from __future__ import annotations

import queue
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from celu.errors import CeluError, CertificateError, PeerLost, ProtocolError
from celu.transport.tls import Identity, answering, calling, issued_for
from celu.transport.wire import PIECE_BYTES

HANDSHAKE_S = 20.0
FLIGHT_BYTES = 64 * 1024  # the most that one side says at once in a handshake
# A TLS record holds at most 16 KiB and adds 22 bytes; what is over leaves room for a key update.
SEALED_BYTES = PIECE_BYTES + (PIECE_BYTES // (16 * 1024) + 1) * 22 + 1024
_WELCOME = b"celu"


class Seal:
    """One end of a sealed conversation with `peer`.

    The side that was called gives `admit`, which is called once the caller has proven to be `peer`
    and may raise a CeluError to turn it away all the same.
    """

    def __init__(
        self, identity: Identity, peer: str, admit: Callable[[], None] | None = None
    ) -> None:
        self._peer = peer
        self._admit = admit
        self._authority = identity.authorities[peer]
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._lock = threading.Lock()  # OpenSSL allows one thread at a time
        self._flights: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._outcome: Future[None] = Future()
        if admit is None:
            context, name = calling(identity, peer), peer
        else:
            context, name = answering(identity, [peer]), None
        self._tls = context.wrap_bio(
            self._arrived, self._leaving, server_side=admit is not None, server_hostname=name
        )
        if admit is None:
            self._shake(b"")

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

    def seal(self, piece: bytes) -> bytes:
        """A piece as the one byte string that stands for it."""
        with self._lock:
            left = memoryview(piece)
            while left:
                left = left[self._tls.write(left) :]
            return self._leaving.read()

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
            yield self._open(data)

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
        done = False
        while not done:
            done = self._shake(self._next(received))
        if self._admit is None:
            word = self._open(self._next(received), refusal=True)
            if word != _WELCOME:
                raise ProtocolError("expected a sealed welcome, got something else")
        else:
            certificate = self._tls.getpeercert(binary_form=True) or b""
            pem = ssl.DER_cert_to_PEM_cert(certificate).encode("ascii")
            if not issued_for(pem, self._peer, self._authority):
                raise CertificateError(f"a caller's certificate is not that of {self._peer}")
            self._admit()
            self._flights.put(self.seal(_WELCOME))
        with self._lock:
            if self._outcome.done():
                raise PeerLost(f"the TLS handshake with {self._peer} came too late")
            self._outcome.set_result(None)
        self._flights.put(None)

    def _next(self, received: Iterator[bytes]) -> bytes:
        data = next(received, None)
        if data is None:
            raise PeerLost(f"{self._peer} closed the link in the TLS handshake")
        if len(data) > FLIGHT_BYTES:
            raise ProtocolError(
                f"expected at most {FLIGHT_BYTES} bytes of a TLS handshake, got {len(data)}"
            )
        return data

    def _shake(self, data: bytes) -> bool:
        """Go on with the handshake; whether it is done."""
        with self._lock:
            try:
                self._arrived.write(data)
                self._tls.do_handshake()
                return True
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLError as error:
                raise self._explain(error) from error
            finally:
                if flight := self._leaving.read():  # a refusal as well
                    self._flights.put(flight)

    def _open(self, data: bytes, *, refusal: bool = False) -> bytes:
        if len(data) > SEALED_BYTES:
            raise ProtocolError(f"expected at most {SEALED_BYTES} sealed bytes, got {len(data)}")
        parts = []
        with self._lock:
            self._arrived.write(data)
            try:
                while part := self._tls.read(PIECE_BYTES):
                    parts.append(part)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                if refusal:
                    raise self._explain(error) from error
                raise ProtocolError(
                    f"expected a sealed piece, got bytes that do not open: {error.reason or error}"
                ) from error
        if not parts:
            raise ProtocolError(f"expected a sealed piece, got {len(data)} bytes without one")
        return b"".join(parts)

    def _explain(self, error: ssl.SSLError) -> CeluError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return CertificateError(
                f"the certificate of {self._peer} is not acceptable: {error.verify_message}; "
                f"expected one for {self._peer!r} signed by its own authority"
            )
        reason = error.reason or str(error)
        if "ALERT" in reason or "CERTIFICATE" in reason:
            return CertificateError(
                f"{self._peer} and this party do not accept each other's certificates ({reason}); "
                "does each trust the authority that signed the other's?"
            )
        return ProtocolError(f"expected a TLS handshake with {self._peer}, got: {reason}")
