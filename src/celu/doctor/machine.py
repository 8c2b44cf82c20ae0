"""What this party can see without its peer: the kernel's settings and the certificates' dates.

Nothing of it is sent to anybody.
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
    """How this machine's kernel treats TCP; None where it does not say (another system).

    The buffers are least, default and most bytes, as the kernel keeps them.
    """

    congestion_control: str | None = None
    tcp_rmem: tuple[int, ...] | None = None
    tcp_wmem: tuple[int, ...] | None = None
    slow_start_after_idle: bool | None = None


def this_machine(settings: Path = _SETTINGS) -> Machine:
    """The settings of the kernel that we run on."""
    idle = _read(settings / "tcp_slow_start_after_idle")
    return Machine(
        _read(settings / "tcp_congestion_control"),
        _three(_read(settings / "tcp_rmem")),
        _three(_read(settings / "tcp_wmem")),
        None if idle is None else idle != "0",
    )


@dataclass(frozen=True)
class Certificate:
    """One certificate of those that a link rests on."""

    whose: str  # a party's name, or "authority of" one
    subject: str
    expires: str  # UTC
    days_left: float


def read_certificates(
    name: str, keys: tuple[Path, Path, Mapping[str, Path]], now: dt.datetime
) -> list[Certificate]:
    """Our certificate and each peer's authority; raises CertificateError for unreadable files."""
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


def _three(text: str | None) -> tuple[int, ...] | None:
    parts = (text or "").split()
    return tuple(map(int, parts)) if len(parts) == 3 and all(map(str.isdigit, parts)) else None
