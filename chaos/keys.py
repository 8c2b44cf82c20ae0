"""The parties' keys, made once a process: making them anew for every run would take longer."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from celu.certs import make_authority, make_party
from celu.transport.tls import Credentials, answering, calling

NAMES = ("guest", "host", "other")


@dataclass(frozen=True)
class Keys:
    """One party's contexts for calling and answering one peer, and that peer's authority."""

    calling: ssl.SSLContext
    answering: ssl.SSLContext
    authority: bytes


@cache
def keys() -> dict[tuple[str, str], Keys]:
    """By party and peer."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in NAMES:
            make_authority(folder / name, name)
            make_party(folder / name, name)
        return {
            (name, peer): _read(folder, name, peer)
            for name in NAMES
            for peer in NAMES
            if name != peer
        }


def _read(folder: Path, name: str, peer: str) -> Keys:
    identity = Credentials.read(
        folder / name / f"{name}.pem",
        folder / name / f"{name}.key",
        {peer: folder / peer / "ca.pem"},
    )
    return Keys(calling(identity, peer), answering(identity, [peer]), identity.authorities[peer])
