"""Everything that can be wrong with a party's certificate, on either side.

Each `Bad` returns the keys of a bank that dials or of a guest that listens.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from celu.certs import make_authority, make_party

Keys = tuple[Path, Path, dict[str, Path]]
Bad = Callable[[dict[str, Any], Path], Keys]
HOUR = dt.timedelta(hours=1)
PEER_OF = {"bank": "guest", "guest": "bank"}


def another_authority(name: str) -> Bad:
    def keys(companies: dict[str, Any], folder: Path) -> Keys:
        stranger = type(companies[name])(name, folder)
        make_authority(folder, "celu")
        make_party(folder, name)
        return stranger.keys(companies[PEER_OF[name]])

    return keys


def issued(name: str, certificate_for: str | None = None, **changes: Any) -> Bad:
    """A certificate of the right authority, with these changes."""

    def keys(companies: dict[str, Any], folder: Path) -> Keys:
        company = companies[name]
        odd = company.issue(folder, certificate_for or name, **changes)
        return (*odd, company.keys(companies[PEER_OF[name]])[2])

    return keys


def bad(name: str, other_use: Any) -> dict[str, Bad]:
    return {
        "another authority": another_authority(name),
        "self-signed": issued(name, self_signed=True),
        "expired": issued(name, valid=(-2 * HOUR, -HOUR)),
        "not yet valid": issued(name, valid=(HOUR, 2 * HOUR)),
        "for another name": issued(name, "branch"),
        "for another use": issued(name, uses=(other_use,)),
    }


BAD_CLIENTS = bad("bank", ExtendedKeyUsageOID.SERVER_AUTH)
BAD_LISTENERS = bad("guest", ExtendedKeyUsageOID.CLIENT_AUTH)
bad_clients = pytest.mark.parametrize("client", BAD_CLIENTS.values(), ids=BAD_CLIENTS)
bad_listeners = pytest.mark.parametrize("listener", BAD_LISTENERS.values(), ids=BAD_LISTENERS)
