"""The result of an audit: the contents of `audit.json` in a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from celu.audit.leak import Leak
from celu.errors import ConfigError
from celu.text import printable

AUDIT = "audit.json"  # in a run folder
KEY = "audit.key"
View = Literal["one exposure", "average of exposures", "all exposures"]
_Share = FiniteFloat | None
_MAX_BYTES = 4 * 1024 * 1024


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Attack(_Part):
    """An attack on labels through dZ: what it finds of rows whose labels it does not know."""

    name: str
    view: View
    rows: Leak
    canaries: Leak | None = None


class Completion(_Part):
    """Model completion: a host trains a head on its own Z, with a few labels that it knows.

    `gap` is what it finds of training rows beyond rows that training has not seen.
    """

    known: int
    exposed_auc: _Share
    unseen_auc: _Share
    gap: _Share
    canary_auc: _Share = None


class LabelLeak(_Part):
    """What one host can learn of the guest's labels."""

    host: str
    attacks: list[Attack]
    completion: Completion | None = None


class ColumnLeak(_Part):
    """The share of a host's column that a decoder of Z recovers beyond the mean or the mode."""

    name: str
    kind: Literal["number", "category"]
    one: _Share  # from the newest Z of a row
    all: _Share  # from all recorded exposures


class Audit(_Part):
    """What a party measured of its own run; `labels` at the guest, `columns` at a host."""

    version: Literal[1] = 1
    party: str
    rows: int
    exposures: int
    canaries: int = 0
    seconds: FiniteFloat
    labels: list[LabelLeak] = []
    columns: list[ColumnLeak] = []
    promises: list[str] = []  # of the contract's defences
    notes: list[str] = []
    not_covered: list[str] = []

    def to_json(self) -> str:
        """The contents of `audit.json`."""
        return self.model_dump_json(indent=1) + "\n"


def read_audit(folder: Path) -> Audit | None:
    """The audit of a run folder, None if it has none; raises ConfigError for a damaged file."""
    path = folder / AUDIT
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path}: expected at most {_MAX_BYTES:,} bytes, got more")
        return Audit.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        detail = printable(str(error).splitlines()[0])
        raise ConfigError(
            f"{path}: expected an audit as celu writes it, got something else ({detail})"
        ) from error
