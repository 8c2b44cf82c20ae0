"""Make a certificate authority and a party's certificate, for companies without their own.

Each company makes its own authority and signs its own party: private keys never leave it. The
companies exchange only `ca.pem`, which is public.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from celu.config.reading import PARTY_NAME
from celu.errors import CertificateError
from celu.transport.tls import UNREADABLE

_MAX_COMPANY_NAME = 64 - len(" authority")  # a certificate's common name holds 64 characters
_CLOCK_SKEW = dt.timedelta(hours=1)  # the peer's clock may be behind


def make_authority(folder: Path, name: str, days: int = 3650) -> Path:
    """Write ca.pem and ca.key; raises CertificateError if they exist."""
    if not 0 < len(name) <= _MAX_COMPANY_NAME:
        raise CertificateError(
            f"expected a company name of 1 to {_MAX_COMPANY_NAME} characters, got {len(name)}"
        )
    certificate_path, key_path = folder / "ca.pem", folder / "ca.key"
    _refuse_existing(certificate_path, key_path)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"{name} authority")
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(key_path, _private_pem(key), secret=True)
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate_path


def make_party(folder: Path, name: str, days: int = 365) -> Path:
    """Write NAME.pem and NAME.key, signed by the authority in `folder`.

    Raises CertificateError if there is no authority, or the certificate exists.
    """
    if not re.fullmatch(PARTY_NAME, name):
        raise CertificateError(
            f"expected a party name as in job.toml (a-z, 0-9 and -), got {name!r}"
        )
    certificate_path, key_path = folder / f"{name}.pem", folder / f"{name}.key"
    _refuse_existing(certificate_path, key_path)
    authority, authority_key = _read_authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    either_role = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(_name(name), authority.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(either_role), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    _write(key_path, _private_pem(key), secret=True)
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate_path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    except (OSError, TypeError, *UNREADABLE) as error:
        raise CertificateError(
            f"{folder}: cannot read the authority (ca.pem and ca.key): {error}; "
            'make one with "celu certs ca"'
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{folder / 'ca.key'}: expected an elliptic-curve key")
    return authority, key


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise CertificateError(f"{path} exists; remove it, or choose another folder")


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if secret else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
