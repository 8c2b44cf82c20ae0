"""Try a peer's door before a carrier uses it: a precise word on what is wrong there.

Carriers cannot say which side refused which certificate, and why; Python's own TLS can. At a
gateway's door only the gateway itself can be looked at: the peer is behind it.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from celu.errors import CertificateError, ConfigError, PeerLost
from celu.transport.tls import Credentials, calling, read_authority

RETRY_S = 0.25
_CLOSED = 3  # times, for a connection that is closed without a word to be a refusal
_TRY_S = 10.0
# What a listener of each carrier agrees to speak inside TLS (ALPN), and how to have it say
# something: a listener for HTTP/2 greets by itself.
SPEAKS = {"grpc": "h2", "websocket": "http/1.1"}
PREFLIGHT_PATH = "/celu/knock"
_GREETINGS = {
    "grpc": b"",
    "websocket": f"GET {PREFLIGHT_PATH} HTTP/1.1\r\nHost: celu\r\n\r\n".encode("ascii"),
}


@dataclass(frozen=True)
class Gateway:
    """A gateway in front of a peer: `ca` signed its certificate, for `name`.

    Without `ca` the gateway is spoken to in plain HTTP, as where it is a process of this machine.
    The peer's TLS runs inside either way.
    """

    name: str
    ca: Path | None = None


def preflight(
    address: str, peer: str, credentials: Credentials, carrier: str, connect_s: float
) -> None:
    """Wait until the peer listens, then check that each side accepts the other's certificate.

    Raises PeerLost where nobody answers within `connect_s`, CertificateError where either side
    refuses, ConfigError where the peer uses another carrier.
    """
    context = calling(credentials, peer)
    context.set_alpn_protocols(list(SPEAKS.values()))
    certificate = credentials.files[0]
    refusal = (
        f"{peer} at {address} refused our certificate {certificate}; "
        "does it trust the authority that signed it?"
    )

    closed = 0

    def look(raw: socket.socket) -> None:
        nonlocal closed
        speaks_tls = False
        try:
            with context.wrap_socket(raw, server_hostname=peer) as tls:
                speaks_tls = True
                _check_spoken(tls, carrier, f"{peer} at {address}")
                # In TLS 1.3 a refusal of our certificate only shows at the first read.
                tls.sendall(_GREETINGS[carrier])
                if not tls.recv(1):
                    # Refused; or, where it does not happen again, by a process that just ends.
                    closed += 1
                    if closed >= _CLOSED:
                        raise CertificateError(refusal)
                    raise ConnectionError("it closes the connection once it knows who calls")
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(
                f"the certificate of {peer} at {address} is not acceptable: "
                f"{error.verify_message}; expected one for {peer!r} signed by the authority in "
                f"peers.{peer}.ca (where this is a gateway's address: set peers.{peer}.gateway)"
            ) from error
        except ssl.SSLEOFError as error:
            # As where its process ends just then, or another answers for one that is not there yet.
            raise ConnectionError(
                f"it closes the connection and does not speak TLS (where {peer} is behind a "
                f"gateway, connect to the gateway, and set peers.{peer}.gateway)"
            ) from error
        except ssl.SSLError as error:
            if not speaks_tls and error.reason == "WRONG_VERSION_NUMBER":
                raise CertificateError(
                    f"{peer} at {address} does not speak TLS there; where it is behind a gateway, "
                    f"connect to the gateway, and set peers.{peer}.gateway"
                ) from error
            raise CertificateError(f"{refusal} ({error.reason or error})") from error

    try:
        _reach(address, peer, look, connect_s)
    except PeerLost as error:
        if closed:
            raise CertificateError(refusal) from error
        raise


def preflight_gateway(
    address: str, peer: str, gateway: Gateway, carrier: str, connect_s: float
) -> None:
    """Wait until a peer's gateway answers, then check its certificate and what it speaks.

    Raises PeerLost, CertificateError and ConfigError as `knock` does.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    speech = "http/1.1"  # which every gateway speaks, said or unsaid
    context.set_alpn_protocols([SPEAKS[carrier], speech])
    if gateway.ca is not None:
        context.load_verify_locations(cadata=read_authority(gateway.ca).decode("ascii"))
    where = f"the gateway of {peer} at {address}"

    def look(raw: socket.socket) -> None:
        if gateway.ca is None:
            return
        try:
            with context.wrap_socket(raw, server_hostname=gateway.name) as tls:
                speaks = tls.selected_alpn_protocol() or speech
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(
                f"the certificate of {where} is not acceptable: {error.verify_message}; "
                f"expected one for {gateway.name!r} signed by {gateway.ca}"
            ) from error
        except ssl.SSLError as error:
            raise CertificateError(
                f"expected TLS 1.3 of {where}, got: {error.reason or error}"
            ) from error
        if speaks != SPEAKS[carrier]:
            raise ConfigError(
                f'carrier = "{carrier}" needs HTTP/2, which {where} does not speak; have it listen '
                'with http2, or set carrier = "websocket" at all parties'
            )

    _reach(address, f"the gateway of {peer}", look, connect_s)


def _check_spoken(tls: ssl.SSLSocket, carrier: str, where: str) -> None:
    spoken = tls.selected_alpn_protocol()
    if spoken == SPEAKS[carrier]:
        return
    theirs = {speech: name for name, speech in SPEAKS.items()}.get(spoken or "", "another")
    raise ConfigError(
        f'carrier: expected the same at all parties, got "{carrier}" here and "{theirs}" at {where}'
    )


def _reach(
    address: str, whom: str, look: Callable[[socket.socket], None], connect_s: float
) -> None:
    """Have a look at whoever accepts a connection, and try again until somebody does."""
    host, port = address.rsplit(":", 1)
    give_up = time.monotonic() + connect_s
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_TRY_S) as raw:
                return look(raw)
        except OSError as error:
            if time.monotonic() >= give_up:
                raise PeerLost(
                    f"nobody answers for {whom} at {address} after {connect_s:g} s (connect_s): "
                    f"{error}; is its side running, and the port open?"
                ) from error
            time.sleep(RETRY_S)
