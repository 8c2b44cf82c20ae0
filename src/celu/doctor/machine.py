"""Facts about this machine: TCP settings of the kernel, and the dates of certificates.

None of them is sent to a peer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from celu.transport.tls import Credentials

_SETTINGS = Path("/proc/sys/net/ipv4")


@dataclass(frozen=True)
class Machine:
    """TCP settings of this machine's kernel; None where unknown (other systems).

    The buffers are minimum, default and maximum bytes, as in sysctl.
    """

    congestion_control: str | None = None
    tcp_rmem: tuple[int, ...] | None = None
    tcp_wmem: tuple[int, ...] | None = None
    slow_start_after_idle: bool | None = None


def this_machine(settings: Path = _SETTINGS) -> Machine:
    """Read the settings of this machine's kernel."""
    idle = _read(settings / "tcp_slow_start_after_idle")
    return Machine(
        _read(settings / "tcp_congestion_control"),
        _parse_sizes(_read(settings / "tcp_rmem")),
        _parse_sizes(_read(settings / "tcp_wmem")),
        None if idle is None else idle != "0",
    )


@dataclass(frozen=True)
class Certificate:
    """One of the certificates that a link uses."""

    whose: str  # a party's name, or "authority of" one
    subject: str
    expires: str  # UTC
    days_left: float


def read_certificates(
    name: str, keys: tuple[Path, Path, Mapping[str, Path]], now: dt.datetime
) -> list[Certificate]:
    """Our certificate and each peer's authority; raises CertificateError."""
    identity = Credentials.read(*keys)
    found = {name: identity.certificate}
    found |= {f"authority of {peer}": pem for peer, pem in identity.authorities.items()}
    return [_facts(whose, pem, now) for whose, pem in found.items()]


def _facts(whose: str, pem: bytes, now: dt.datetime) -> Certificate:
    certificate = x509.load_pem_x509_certificate(pem)
    expires = certificate.not_valid_after_utc
    return Certificate(
        whose,
        certificate.subject.rfc4514_string(),
        expires.isoformat(timespec="seconds"),
        (expires - now).total_seconds() / 86400,
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def _parse_sizes(text: str | None) -> tuple[int, ...] | None:
    parts = (text or "").split()
    return tuple(map(int, parts)) if len(parts) == 3 and all(map(str.isdigit, parts)) else None
