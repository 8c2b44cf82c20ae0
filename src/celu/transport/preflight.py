"""Check a peer's address before a carrier uses it, for a precise error message.

Carriers cannot report which side rejected which certificate, and why; Python's own TLS can. For a
peer behind a gateway, only the gateway is checked.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from celu.errors import CertificateError, ConfigError, PeerLost
from celu.text import printable
from celu.transport.tls import Credentials, client_context, read_authority

RETRY_S = 0.25
_MAX_CLOSED = 3  # connections closed without an answer that count as a rejection
_ATTEMPT_S = 10.0
# The protocol that each carrier negotiates inside TLS (ALPN).
ALPN = {"grpc": "h2", "websocket": "http/1.1"}
PREFLIGHT_PATH = "/celu/knock"
# What to send so that a listener answers; inside TLS, an HTTP/2 listener sends first.
_REQUESTS = {
    "grpc": b"",
    "websocket": f"GET {PREFLIGHT_PATH} HTTP/1.1\r\nHost: celu\r\n\r\n".encode("ascii"),
}
_SETTINGS = 4  # the type of the first frame of HTTP/2
_EMPTY_SETTINGS = bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
_PLAIN_REQUESTS = {**_REQUESTS, "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _EMPTY_SETTINGS}


@dataclass(frozen=True)
class Gateway:
    """A gateway in front of a peer: `ca` signed its certificate, for `name`.

    Without `ca` the connection to the gateway is plain HTTP, such as to a process on this machine.
    The peer's TLS runs inside either way.
    """

    name: str
    ca: Path | None = None


def preflight(
    address: str, peer: str, credentials: Credentials, carrier: str, connect_s: float
) -> None:
    """Wait until the peer listens, then check that each side accepts the other's certificate.

    Raises PeerLost if the peer does not answer within `connect_s`, CertificateError if either side
    rejects the other, ConfigError if the peer uses another carrier.
    """
    context = client_context(credentials, peer)
    context.set_alpn_protocols(list(ALPN.values()))
    certificate = credentials.files[0]
    rejection = (
        f"{peer} at {address} rejected our certificate {certificate}; "
        "does it trust the authority that signed it?"
    )
    without_tls = (
        f"{peer} at {address} does not speak TLS; if its party.toml has insecure = true, remove it "
        "there or set it here, too; if it is behind a gateway, connect to the gateway and set "
        f"peers.{peer}.gateway"
    )

    num_closed = 0

    def check(raw: socket.socket) -> None:
        nonlocal num_closed
        uses_tls = False
        try:
            with context.wrap_socket(raw, server_hostname=peer) as tls:
                uses_tls = True
                _check_alpn(tls, carrier, f"{peer} at {address}")
                # In TLS 1.3 a rejection of our certificate only shows at the first read.
                tls.sendall(_REQUESTS[carrier])
                if not tls.recv(1):
                    # Rejected; or, if it does not happen again, its process was just stopping.
                    num_closed += 1
                    if num_closed >= _MAX_CLOSED:
                        raise CertificateError(rejection)
                    raise ConnectionError("it closed the connection after our certificate")
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(
                f"the certificate of {peer} at {address} is not acceptable: "
                f"{printable(error.verify_message)}; expected one for {peer!r} signed by the "
                f"authority in peers.{peer}.ca (if this is a gateway's address, set "
                f"peers.{peer}.gateway)"
            ) from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:  # Python 3.11.2: the latter
            if _plain_carrier(address) is not None:
                raise CertificateError(without_tls) from error
            # Retried: its process may be stopping, or a proxy answers before it has started.
            raise ConnectionError(
                f"it closes the connection and does not speak TLS (if {peer} is behind a "
                f"gateway, connect to the gateway and set peers.{peer}.gateway)"
            ) from error
        except ssl.SSLError as error:
            if not uses_tls and error.reason == "WRONG_VERSION_NUMBER":
                raise CertificateError(without_tls) from error
            raise CertificateError(
                f"{rejection} ({printable(error.reason or str(error))})"
            ) from error

    try:
        _retry(address, peer, check, connect_s)
    except PeerLost as error:
        if num_closed:
            raise CertificateError(rejection) from error
        raise


def preflight_insecure(address: str, peer: str, carrier: str, connect_s: float) -> None:
    """Wait until the peer listens, then check that it uses the same carrier, without TLS, too.

    Raises PeerLost if the peer does not answer within `connect_s`, ConfigError if it uses TLS or
    another carrier.
    """

    def check(raw: socket.socket) -> None:
        found = _answer(raw, _PLAIN_REQUESTS[carrier])
        if found is None and _speaks_tls(address):
            raise ConfigError(
                f"insecure: expected the same at all parties, got insecure = true here, and {peer} "
                f"at {address} uses TLS; remove it here and set [keys] and peers.{peer}.ca, or set "
                "it there, too"
            )
        found = found or _plain_carrier(address)
        if found is None:
            raise ConnectionError("it closed the connection without an answer")
        if found != carrier:
            raise ConfigError(
                f'carrier: expected the same at all parties, got "{carrier}" here and "{found}" at '
                f"{peer} at {address}"
            )

    _retry(address, peer, check, connect_s)


def _answer(raw: socket.socket, request: bytes) -> str | None:
    """The carrier that answers a request without TLS; None for another answer or none."""
    try:
        raw.sendall(request)
        answer = raw.recv(16)
    except OSError:  # reset, which a listener with TLS does
        return None
    if answer.startswith(b"HTTP/1."):
        return "websocket"
    return "grpc" if len(answer) > 3 and answer[3] == _SETTINGS else None


def _plain_carrier(address: str) -> str | None:
    """The carrier of a listener without TLS; None if neither answers."""
    for request in _PLAIN_REQUESTS.values():
        with suppress(OSError), _connected(address) as raw:
            found = _answer(raw, request)
            if found is not None:
                return found
    return None


def _speaks_tls(address: str) -> bool:
    """Whether a listener answers a TLS handshake, whatever its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: its certificate does not matter
    context.set_alpn_protocols(list(ALPN.values()))
    try:
        with _connected(address) as raw, context.wrap_socket(raw):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _connected(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host.strip("[]"), int(port)), timeout=_ATTEMPT_S)


def preflight_gateway(
    address: str, peer: str, gateway: Gateway, carrier: str, connect_s: float
) -> None:
    """Wait until a peer's gateway answers, then check its certificate and its protocol.

    Raises PeerLost, CertificateError and ConfigError like `preflight`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    default = "http/1.1"  # every gateway supports it, even without ALPN
    context.set_alpn_protocols([ALPN[carrier], default])
    if gateway.ca is not None:
        context.load_verify_locations(cadata=read_authority(gateway.ca).decode("ascii"))
    where = f"the gateway of {peer} at {address}"

    def check(raw: socket.socket) -> None:
        if gateway.ca is None:
            return
        try:
            with context.wrap_socket(raw, server_hostname=gateway.name) as tls:
                protocol = tls.selected_alpn_protocol() or default
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(
                f"the certificate of {where} is not acceptable: "
                f"{printable(error.verify_message)}; expected one for {gateway.name!r} "
                f"signed by {gateway.ca}"
            ) from error
        except ssl.SSLError as error:
            raise CertificateError(
                f"expected TLS 1.3 from {where}, got: {printable(error.reason or str(error))}"
            ) from error
        if protocol != ALPN[carrier]:
            raise ConfigError(
                f'carrier = "{carrier}" needs HTTP/2, which {where} does not support; enable '
                'http2 there, or set carrier = "websocket" at all parties'
            )

    _retry(address, f"the gateway of {peer}", check, connect_s)


def _check_alpn(tls: ssl.SSLSocket, carrier: str, where: str) -> None:
    protocol = tls.selected_alpn_protocol()
    if protocol == ALPN[carrier]:
        return
    theirs = {alpn: name for name, alpn in ALPN.items()}.get(protocol or "", "another")
    raise ConfigError(
        f'carrier: expected the same at all parties, got "{carrier}" here and "{theirs}" at {where}'
    )


def _retry(
    address: str, target: str, check: Callable[[socket.socket], None], connect_s: float
) -> None:
    """Connect and run a check; retry on network errors, raise PeerLost at the deadline."""
    give_up_at = time.monotonic() + connect_s
    while True:
        try:
            with _connected(address) as raw:
                return check(raw)
        except OSError as error:
            if time.monotonic() >= give_up_at:
                raise PeerLost(
                    f"no answer from {target} at {address} after {connect_s:g} s (connect_s): "
                    f"{printable(str(error))}; is its side running, and the port open?"
                ) from error
            time.sleep(RETRY_S)
