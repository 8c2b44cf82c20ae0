"""Who is at the other end: mutual TLS 1.3 with one authority for each peer.

A party trusts a peer's authority for that peer's name alone: an authority of company B cannot
vouch for company C. `knock` tries a connection with Python's own TLS first, because it can say
what gRPC cannot: which side refused which certificate, and why.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from celu.errors import CertificateError, PeerLost

_RETRY_S = 0.25
_TRY_S = 10.0


@dataclass(frozen=True)
class Identity:
    """This party's certificate and private key, and each peer's authority (PEM)."""

    certificate: bytes
    key: bytes
    authorities: dict[str, bytes]

    @staticmethod
    def read(certificate: Path, key: Path, authorities: Mapping[str, Path]) -> Identity:
        """Read the files; raises CertificateError naming the one that will not do."""
        for path in (certificate, *authorities.values()):
            try:
                x509.load_pem_x509_certificate(_read(path))
            except ValueError as error:
                raise CertificateError(f"{path}: expected a certificate in PEM form") from error
        try:
            secret = load_pem_private_key(_read(key), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise CertificateError(
                f"{key}: expected a private key in PEM form, without a password"
            ) from error
        if secret.public_key() != x509.load_pem_x509_certificate(_read(certificate)).public_key():
            raise CertificateError(f"{key}: expected the key of {certificate}, got another's")
        return Identity(
            _read(certificate), _read(key), {name: _read(p) for name, p in authorities.items()}
        )


def issued_for(certificate_pem: bytes, name: str, authority_pem: bytes) -> bool:
    """Whether a certificate names this party and was signed by this very authority."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority_pem))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # malformed, a wrong key type, signature or issuer, no name: the answer is no
        return False
    return name in names.get_values_for_type(x509.DNSName)


def knock(address: str, peer: str, files: tuple[Path, Path, Path], connect_s: float) -> None:
    """Wait until the peer listens, then check that each side accepts the other's certificate.

    `files` are our certificate, our key and the peer's authority. Raises PeerLost where nobody
    answers within `connect_s`, CertificateError where either side refuses.
    """
    certificate, key, authority = files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(
            f"{certificate}, {key}: expected a matching certificate and key, got: {error}"
        ) from error
    host, port = address.rsplit(":", 1)
    give_up = time.monotonic() + connect_s
    while True:
        try:
            with (
                socket.create_connection((host.strip("[]"), int(port)), timeout=_TRY_S) as raw,
                context.wrap_socket(raw, server_hostname=peer) as tls,
            ):
                # In TLS 1.3 a refusal of our certificate only shows at the first read; a server
                # that accepts it greets with its HTTP/2 settings.
                if tls.recv(1):
                    return
            raise CertificateError(
                f"{peer} at {address} refused our certificate {certificate}; "
                "does it trust the authority that signed it?"
            )
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(
                f"the certificate of {peer} at {address} is not acceptable: "
                f"{error.verify_message}; expected one for {peer!r} signed by {authority}"
            ) from error
        except ssl.SSLError as error:
            raise CertificateError(
                f"{peer} at {address} refused our certificate {certificate} "
                f"({error.reason or error}); does it trust the authority that signed it?"
            ) from error
        except OSError as error:
            if time.monotonic() >= give_up:
                raise PeerLost(
                    f"nobody answers for {peer} at {address} after {connect_s:g} s (connect_s): "
                    f"{error}; is its side running, and the port open?"
                ) from error
            time.sleep(_RETRY_S)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path}: expected a readable file, got: {error.strerror}"
        ) from error
