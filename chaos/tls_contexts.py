"""The parties' TLS contexts, created once per process because creating keys is slow."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from celu.certs import make_authority, make_party
from celu.transport.tls import Credentials, client_context, server_context

NAMES = ("guest", "host", "other")


@dataclass(frozen=True)
class TlsContexts:
    """One party's client and server context for one peer, and that peer's authority."""

    client: ssl.SSLContext
    server: ssl.SSLContext
    authority: bytes


@cache
def tls_contexts() -> dict[tuple[str, str], TlsContexts]:
    """The contexts by party and peer."""
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


def _read(folder: Path, name: str, peer: str) -> TlsContexts:
    credentials = Credentials.read(
        folder / name / f"{name}.pem",
        folder / name / f"{name}.key",
        {peer: folder / peer / "ca.pem"},
    )
    return TlsContexts(
        client_context(credentials, peer),
        server_context(credentials, [peer]),
        credentials.authorities[peer],
    )
