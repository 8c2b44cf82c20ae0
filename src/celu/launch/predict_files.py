"""The files of one party of a prediction. Does not import torch, so that errors appear at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from celu.config.party import PartySettings


@dataclass(frozen=True)
class PredictParty:
    """One party's settings, the folder of its own modules, and the files to predict with.

    `out` is the scores file, at the guest. Without an alignment, the stores of all parties hold the
    same rows in the same order.
    """

    settings: PartySettings
    source: Path
    model: Path
    store: Path
    alignment: Path | None
    out: Path | None = None
