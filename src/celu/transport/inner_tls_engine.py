"""Mutual TLS 1.3 between two parties as a value: byte strings in, byte strings out.

It moves nothing and waits for nothing. Threads (`sealed`) or a simulator's clock (`chaos`) hand it
what arrives and send what it says.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from celu.errors import CeluError, CertificateError, PeerLost, ProtocolError
from celu.transport.tls import issued_for
from celu.transport.wire import PIECE_BYTES

FLIGHT_BYTES = 64 * 1024  # the most that one side says at once in a handshake
# A TLS record holds at most 16 KiB and adds 22 bytes; what is over leaves room for a key update.
SEALED_BYTES = PIECE_BYTES + (PIECE_BYTES // (16 * 1024) + 1) * 22 + 1024
_WELCOME = b"celu"


class InnerTlsEngine:
    """One end of a sealed conversation with `peer`, whose authority's certificate is given (PEM).

    The handshake's part of what is to be sent goes to `say`, the caller's first flight at once. The
    side that was called gives `admit`, which is called once the caller has proven to be `peer` and
    may raise a CeluError to turn it away all the same. `lock` is held around OpenSSL, which allows
    one thread at a time, and around nothing else.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        peer: str,
        authority: bytes,
        say: Callable[[bytes], None],
        admit: Callable[[], None] | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.is_open = False  # the handshake has ended well
        self._peer = peer
        self._authority = authority
        self._say = say
        self._admit = admit
        self._lock = lock or nullcontext()
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        called = admit is not None
        name = None if called else peer
        self._tls = context.wrap_bio(
            self._arrived, self._leaving, server_side=called, server_hostname=name
        )
        self._shaken = not called and self._shake(b"")

    def encrypt(self, piece: bytes) -> bytes:
        """A piece as the one byte string that stands for it.

        Raises PeerLost where what arrived has broken the inner_tls: TLS then says nothing any more.
        """
        with self._lock:
            left = memoryview(piece)
            try:
                while left:
                    left = left[self._tls.write(left) :]
            except ssl.SSLError as error:
                raise PeerLost(
                    f"the inner_tls of the connection to {self._peer} is broken: {error.reason or error}"
                ) from error
            return self._leaving.read()

    def take(self, data: bytes) -> bytes | None:
        """The piece that a byte string stands for; None while the handshake goes on.

        Raises CertificateError where either side refuses the other, ProtocolError for what was
        not sealed by the peer.
        """
        if self.is_open:
            return self._open(data)
        if len(data) > FLIGHT_BYTES:
            raise ProtocolError(
                f"expected at most {FLIGHT_BYTES} bytes of a TLS handshake, got {len(data)}"
            )
        if self._shaken:  # so we called, and a welcome is due
            if self._open(data, refusal=True) != _WELCOME:
                raise ProtocolError("expected a sealed welcome, got something else")
            self.is_open = True
            return None
        self._shaken = self._shake(data)
        if self._shaken and self._admit is not None:
            certificate = self._tls.getpeercert(binary_form=True) or b""
            pem = ssl.DER_cert_to_PEM_cert(certificate).encode("ascii")
            if not issued_for(pem, self._peer, self._authority):
                raise CertificateError(f"a caller's certificate is not that of {self._peer}")
            self._admit()
            self._say(self.encrypt(_WELCOME))
            self.is_open = True
        return None

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
                    self._say(flight)

    def _open(self, data: bytes, *, refusal: bool = False) -> bytes:
        if len(data) > SEALED_BYTES:
            raise ProtocolError(f"expected at most {SEALED_BYTES} sealed bytes, got {len(data)}")
        parts = []
        with self._lock:
            self._arrived.write(data)
            try:
                while self._arrived.pending or self._tls.pending():
                    if not (part := self._tls.read(PIECE_BYTES)):
                        break  # the peer will say no more, whatever follows
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
