"""Notices clients whose TLS handshake fails, on both stacks.

gRPC reports nothing about them: it only asks for our certificate when a client connects. Python's
TLS, which the WebSocket carrier uses, has a reason, but asyncio drops it.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from celu.errors import CertificateError
from celu.text import printable

GRACE_S = 3.0  # a peer opens its stream within milliseconds of its handshake
Report = Callable[[CertificateError], None]
# What OpenSSL calls a request of HTTP/1.1, one of HTTP/2, and what an insecure party looks for.
_WITHOUT_TLS = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "PEER_DID_NOT_RETURN_A_CERTIFICATE")


class HandshakeWatch:
    """Calls `report` if a client began a handshake and no stream was opened in `GRACE_S`.

    It cannot tell which of several clients opened a stream, so it errs on the quiet side.
    """

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._num_streams = 0
        self._timer: threading.Timer | None = None
        self._stopped = False

    def began(self) -> None:
        """A client connected; called on the carrier's threads."""
        with self._lock:
            if self._timer is None and not self._stopped:
                self._timer = threading.Timer(GRACE_S, self._check, [self._num_streams])
                self._timer.daemon = True
                self._timer.start()

    def opened_stream(self) -> None:
        """A client completed its handshake and opened a stream."""
        with self._lock:
            self._num_streams += 1

    def stop(self) -> None:
        """Report nothing more."""
        with self._lock:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()

    def _check(self, num_streams: int) -> None:
        with self._lock:
            self._timer = None
            if self._stopped or self._num_streams > num_streams:
                return
        self._report()


def unexplained(peers: Sequence[str], certificate: Path) -> CertificateError:
    """Why a handshake may have failed, where the stack does not say."""
    keys = " or ".join(f"peers.{peer}.ca" for peer in peers)
    return CertificateError(
        f"a client connected, and no TLS handshake succeeded within {GRACE_S:g} s. Does its "
        "party.toml have insecure = true, or another carrier? If not, either we refused its "
        f"certificate: is {keys} the ca.pem that the other side sent? Or it refused ours, "
        f"{certificate}: does it have our ca.pem? Its side says which, unless it was a stranger"
    )


def report_handshakes(
    context: ssl.SSLContext, peers: Sequence[str], certificate: Path, report: Report
) -> None:
    """Call `report` for every handshake of a server's context that fails, with the reason."""

    class Reporting(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                report(_explain(error, peers, certificate))
                raise

    context.sslobject_class = Reporting


def _explain(error: ssl.SSLError, peers: Sequence[str], certificate: Path) -> CertificateError:
    if isinstance(error, ssl.SSLCertVerificationError):
        keys = " or ".join(f"peers.{peer}.ca" for peer in peers)
        return CertificateError(
            f"a client's certificate was refused: {printable(error.verify_message)}; expected one "
            f"signed by the authority in {keys}. Is that the ca.pem that the other side sent?"
        )
    reason = printable(error.reason or type(error).__name__)
    if "ALERT" in reason:
        return CertificateError(
            f"a client refused our certificate {certificate} ({reason}); does it have our ca.pem "
            "as the authority of this party?"
        )
    if reason in _WITHOUT_TLS:
        return CertificateError(
            "a client connected without TLS, or without a certificate; are insecure and carrier in "
            "its party.toml the same as here?"
        )
    return CertificateError(f"a client did not complete the TLS handshake ({reason})")
