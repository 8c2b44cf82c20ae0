"""The protocol of the inner TLS, without I/O: byte strings in, byte strings out.

It never blocks. Threads (`inner_tls`) or a simulated clock (`chaos`) move the bytes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from celu.errors import CeluError, CertificateError, PeerLost, ProtocolError
from celu.text import printable
from celu.transport.tls import is_issued_for
from celu.transport.wire import PIECE_BYTES

MAX_FLIGHT_BYTES = 64 * 1024  # of one flight of the handshake
# An encrypted piece: each TLS record holds at most 16 KiB and adds 22 bytes; 1 KiB is left for a
# key update.
MAX_ENCRYPTED_BYTES = PIECE_BYTES + (PIECE_BYTES // (16 * 1024) + 1) * 22 + 1024
_WELCOME = b"celu"


class InnerTlsEngine:
    """One end of the inner TLS with `peer`, whose certificate `authority` signed (PEM).

    `send` is called with the flights of the handshake; the client's first one is sent at once. The
    server passes `admit`, which is called once the client has proven to be `peer` and may still
    raise a CeluError to reject it. `lock` is only held around OpenSSL, which is not thread-safe.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        peer: str,
        authority: bytes,
        send: Callable[[bytes], None],
        admit: Callable[[], None] | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.is_open = False  # the handshake has succeeded
        self._peer = peer
        self._authority = authority
        self._send = send
        self._admit = admit
        self._lock = lock or nullcontext()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        is_server = admit is not None
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=is_server,
            server_hostname=None if is_server else peer,
        )
        self._handshake_done = not is_server and self._continue_handshake(b"")

    def encrypt(self, piece: bytes) -> bytes:
        """Encrypt a piece to one byte string.

        Raises PeerLost if the received bytes broke the TLS session: it then encrypts nothing more.
        """
        with self._lock:
            left = memoryview(piece)
            try:
                while left:
                    left = left[self._tls.write(left) :]
            except ssl.SSLError as error:
                raise PeerLost(
                    f"the inner TLS of the connection to {self._peer} is broken: "
                    f"{printable(error.reason or str(error))}"
                ) from error
            return self._outgoing.read()

    def receive(self, data: bytes) -> bytes | None:
        """Decrypt a byte string to a piece; returns None during the handshake.

        Raises CertificateError if either side rejects the other, ProtocolError for bytes that the
        peer did not encrypt.
        """
        if self.is_open:
            return self._decrypt(data)
        if len(data) > MAX_FLIGHT_BYTES:
            raise ProtocolError(
                f"expected at most {MAX_FLIGHT_BYTES} bytes of a TLS handshake, got {len(data)}"
            )
        if self._handshake_done:  # we are the client, and the welcome is due
            if self._decrypt(data, may_be_rejection=True) != _WELCOME:
                raise ProtocolError("expected the encrypted welcome, got another piece")
            self.is_open = True
            return None
        self._handshake_done = self._continue_handshake(data)
        if self._handshake_done and self._admit is not None:
            certificate = self._tls.getpeercert(binary_form=True) or b""
            pem = ssl.DER_cert_to_PEM_cert(certificate).encode("ascii")
            if not is_issued_for(pem, self._peer, self._authority):
                raise CertificateError(f"a client's certificate is not that of {self._peer}")
            self._admit()
            self._send(self.encrypt(_WELCOME))
            self.is_open = True
        return None

    def _continue_handshake(self, data: bytes) -> bool:
        """Process a flight of the peer; returns whether the handshake is done."""
        with self._lock:
            try:
                self._incoming.write(data)
                self._tls.do_handshake()
                return True
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLError as error:
                raise self._explain(error) from error
            finally:
                if flight := self._outgoing.read():  # an alert that rejects the peer, too
                    self._send(flight)

    def _decrypt(self, data: bytes, *, may_be_rejection: bool = False) -> bytes:
        if len(data) > MAX_ENCRYPTED_BYTES:
            raise ProtocolError(
                f"expected an encrypted piece of at most {MAX_ENCRYPTED_BYTES} bytes, "
                f"got {len(data)}"
            )
        parts = []
        with self._lock:
            self._incoming.write(data)
            try:
                while self._incoming.pending or self._tls.pending():
                    if not (part := self._tls.read(PIECE_BYTES)):
                        break  # close_notify: the peer sends no more
                    parts.append(part)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                if may_be_rejection:
                    raise self._explain(error) from error
                raise ProtocolError(
                    f"expected an encrypted piece, got bytes that do not decrypt: "
                    f"{printable(error.reason or str(error))}"
                ) from error
        if not parts:
            raise ProtocolError(f"expected an encrypted piece, got {len(data)} bytes without one")
        return b"".join(parts)

    def _explain(self, error: ssl.SSLError) -> CeluError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return CertificateError(
                f"the certificate of {self._peer} is not acceptable: "
                f"{printable(error.verify_message)}; "
                f"expected one for {self._peer!r} signed by its own authority"
            )
        reason = printable(error.reason or str(error))
        if "ALERT" in reason or "CERTIFICATE" in reason:
            return CertificateError(
                f"{self._peer} and this party do not accept each other's certificates ({reason}); "
                "does each trust the authority that signed the other's?"
            )
        return ProtocolError(f"expected a TLS handshake with {self._peer}, got: {reason}")
