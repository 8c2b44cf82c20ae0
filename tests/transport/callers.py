"""What a caller may be wrong about: each takes (companies, folder) and gives the bank's keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from celu.certs import make_authority, make_party

Keys = tuple[Path, Path, dict[str, Path]]
HOUR = dt.timedelta(hours=1)


def of_another_authority(companies: dict[str, Any], folder: Path) -> Keys:
    stranger = type(companies["bank"])("bank", folder)
    make_authority(folder, "celu")
    make_party(folder, "bank")
    return stranger.keys(companies["guest"])


def self_signed(companies: dict[str, Any], folder: Path) -> Keys:
    bank = companies["bank"]
    return (*bank.issue(folder, "bank", self_signed=True), bank.keys(companies["guest"])[2])


def issued(**changes: Any) -> Callable[[dict[str, Any], Path], Keys]:
    def keys(companies: dict[str, Any], folder: Path) -> Keys:
        bank = companies["bank"]
        return (*bank.issue(folder, "bank", **changes), bank.keys(companies["guest"])[2])

    return keys


BAD_CALLERS = {
    "another authority": of_another_authority,
    "self-signed": self_signed,
    "expired": issued(valid=(-2 * HOUR, -HOUR)),
    "not yet valid": issued(valid=(HOUR, 2 * HOUR)),
    "a server's certificate": issued(uses=(ExtendedKeyUsageOID.SERVER_AUTH,)),
}
bad_callers = pytest.mark.parametrize("caller", BAD_CALLERS.values(), ids=BAD_CALLERS)
