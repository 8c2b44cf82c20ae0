"""Authenticate peers: mutual TLS 1.3 with one certificate authority for each peer.

A party trusts a peer's authority for that peer's name alone: the authority of company B cannot
sign a certificate for company C. No I/O here: the carriers and `inner_tls` use the contexts.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from celu.errors import CertificateError

UNREADABLE = (ValueError, UnsupportedAlgorithm, x509.InvalidVersion)  # of a certificate or a key


@dataclass(frozen=True)
class Credentials:
    """This party's certificate and private key, and each peer's authority (PEM).

    `files` are the paths of the certificate and the key: Python's ssl only loads them from files.
    """

    certificate: bytes
    key: bytes
    authorities: dict[str, bytes]
    files: tuple[Path, Path]

    @staticmethod
    def read(certificate: Path, key: Path, authorities: Mapping[str, Path]) -> Credentials:
        """Read the files; raises CertificateError naming the invalid one."""
        for path in (certificate, *authorities.values()):
            try:
                x509.load_pem_x509_certificate(_read(path)).public_key()
            except UNREADABLE as error:
                raise CertificateError(f"{path}: expected a certificate in PEM form") from error
        try:
            secret = load_pem_private_key(_read(key), password=None)
        except (TypeError, *UNREADABLE) as error:
            raise CertificateError(
                f"{key}: expected a private key in PEM form, without a password"
            ) from error
        if secret.public_key() != x509.load_pem_x509_certificate(_read(certificate)).public_key():
            raise CertificateError(f"{key}: expected the private key of {certificate}")
        return Credentials(
            _read(certificate),
            _read(key),
            {name: _read(p) for name, p in authorities.items()},
            (certificate, key),
        )


@lru_cache(maxsize=64)  # a peer presents the same certificate whenever it reconnects
def is_issued_for(certificate_pem: bytes, name: str, authority_pem: bytes) -> bool:
    """Whether a certificate is for this party's name and was signed by exactly this authority."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority_pem))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # malformed, wrong key type, signature or issuer, no name: all mean no
        return False
    return name in names.get_values_for_type(x509.DNSName)


def client_context(credentials: Credentials, peer: str) -> ssl.SSLContext:
    """TLS 1.3 context of a party that dials `peer`; trusts only that peer's authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return _load(context, credentials, [peer])


def server_context(credentials: Credentials, peers: Iterable[str]) -> ssl.SSLContext:
    """TLS 1.3 context of a party that `peers` dial; requires a client certificate.

    It accepts a certificate of any of their authorities: check the name with `is_issued_for`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # TLS sessions are not resumed, and a ticket holds no piece
    return _load(context, credentials, peers)


def _load(
    context: ssl.SSLContext, credentials: Credentials, peers: Iterable[str]
) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(*credentials.files)
        for peer in peers:
            context.load_verify_locations(cadata=credentials.authorities[peer].decode("ascii"))
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        certificate, key = credentials.files
        raise CertificateError(
            f"{certificate}, {key}: expected a matching certificate and key, got: {error}"
        ) from error
    return context


def read_authority(path: Path) -> bytes:
    """Read one or more CA certificates (PEM); raises CertificateError naming the file."""
    content = _read(path)
    try:
        x509.load_pem_x509_certificates(content)
    except UNREADABLE as error:
        raise CertificateError(f"{path}: expected a certificate in PEM form") from error
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path}: expected a readable file, got: {error.strerror}"
        ) from error
