"""How exact matrix products are: a setting of the process, for as long as parties train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from celu.config.party import PartyFile, PartySettings

DIFFERS = (
    "precision: fp32 for all parties: it is one for a process, and some of them have tf32 in "
    "party.toml and some do not"
)


def precision_differs(parties: Mapping[str, PartyFile]) -> bool:
    """Whether parties of one process ask for different precisions; they get the exact one."""
    return len({party.settings.precision for party in parties.values()}) > 1


@contextmanager
def matrix_products(parties: PartySettings | Mapping[str, PartyFile]) -> Iterator[None]:
    """Compute with TF32 if the party, or all parties of the process, ask for it; then as before."""
    asked = (
        {parties.precision}
        if isinstance(parties, PartySettings)
        else {party.settings.precision for party in parties.values()}
    )
    before = torch.get_float32_matmul_precision()
    if asked == {"tf32"}:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
