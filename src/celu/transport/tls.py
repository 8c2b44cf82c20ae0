"""Authenticate peers: mutual TLS 1.3 with one certificate authority for each peer.

A party trusts a peer's authority for that peer's name alone: the authority of company B cannot
sign a certificate for company C. No I/O here: the carriers and `inner_tls` use the contexts.
"""

from __future__ import annotations

import datetime as dt
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
        own = _read_certificate(certificate)
        for path in authorities.values():
            _read_certificate(path)
        if _is_authority(own) is True:
            raise CertificateError(
                f"{certificate}: expected this party's certificate, got that of an authority (CA), "
                f"which only signs others; {_party_files(certificate.parent)}"
            )
        for peer, path in authorities.items():
            if _is_authority(_read_certificate(path)) is False:
                raise CertificateError(
                    f"{path}: expected the authority (CA) of {peer}, got a certificate that it "
                    f"signed; ask {peer} for its ca.pem"
                )
        try:
            secret = load_pem_private_key(_read(key), password=None)
        except (TypeError, *UNREADABLE) as error:
            raise CertificateError(
                f"{key}: expected a private key in PEM form, without a password"
            ) from error
        if secret.public_key() != own.public_key():
            raise CertificateError(f"{key}: expected the private key of {certificate}")
        return Credentials(
            _read(certificate),
            _read(key),
            {name: _read(p) for name, p in authorities.items()},
            (certificate, key),
        )

    def check_own(self, name: str, now: dt.datetime) -> None:
        """Check what a peer would refuse: raises CertificateError unless ours is valid for `name`.

        `read` does not: it also serves to look at certificates that have expired.
        """
        path, own = self.files[0], x509.load_pem_x509_certificate(self.certificate)
        renew = f'make a new one with "celu certs party {name}"'
        names = _names_in(own)
        if name not in names:
            raise CertificateError(
                f"{path}: expected a certificate for {name!r}, the name in party.toml, got one for "
                f"{', '.join(map(repr, names)) or 'no name (no DNS name in it)'}; {renew}"
            )
        if now > own.not_valid_after_utc:
            raise CertificateError(f"{path}: expired at {own.not_valid_after_utc} (UTC); {renew}")
        if now < own.not_valid_before_utc:
            raise CertificateError(
                f"{path}: not valid before {own.not_valid_before_utc} (UTC); check the clock of "
                "this machine"
            )

    def is_signed_by(self, peer: str) -> bool:
        """Whether the authority of this peer also signed our own certificate."""
        own = x509.load_pem_x509_certificate(self.certificate)
        try:
            own.verify_directly_issued_by(x509.load_pem_x509_certificate(self.authorities[peer]))
        except Exception:  # another issuer, key type or signature
            return False
        return True


@lru_cache(maxsize=64)  # a peer presents the same certificate whenever it reconnects
def is_issued_for(certificate_pem: bytes, name: str, authority_pem: bytes) -> bool:
    """Whether a certificate is for this party's name and was signed by exactly this authority."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority_pem))
        return name in _names_in(certificate)
    except Exception:  # malformed, wrong key type, signature or issuer: all mean no
        return False


def _names_in(certificate: x509.Certificate) -> list[str]:
    """The DNS names of a certificate, which are names of parties."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return []
    return names.get_values_for_type(x509.DNSName)


def _is_authority(certificate: x509.Certificate) -> bool | None:
    """Whether a certificate is of an authority; None if it does not say."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, x509.ExtensionNotFound):
        return None


def _party_files(folder: Path) -> str:
    """Which files to name in [keys] instead of an authority's."""
    found = []
    # In full, since paths in a party.toml are relative to its folder, not to the current one.
    for path in sorted(folder.resolve().glob("*.pem")):
        try:
            is_ours = path.with_suffix(".key").exists() and not _is_authority(
                _read_certificate(path)
            )
        except CertificateError:
            continue
        if is_ours:
            found.append(path)
    if len(found) == 1:
        return f"set keys.certificate to {found[0]} and keys.key to {found[0].with_suffix('.key')}"
    return 'set [keys] to NAME.pem and NAME.key, which "celu certs party NAME" writes'


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(_read(path))
        certificate.public_key()  # of a type that we know
    except UNREADABLE as error:
        raise CertificateError(f"{path}: expected a certificate in PEM form") from error
    return certificate


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
