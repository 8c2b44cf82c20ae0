"""The user's own copies of the public click data, or samples of them, prepared."""

from __future__ import annotations

from pathlib import Path

from celu.config.schema import Category, Split
from celu.errors import DataError
from celu.prepare.pipeline import Target, prepare
from celu.prepare.presets import PRESETS

FILES = {"criteo": "criteo_random.tsv.gz", "avazu": "avazu_all.csv.gz"}
# Values that one training row alone holds would be memorised: they share the code for unseen ones.
KNOWN = Category(vocabulary=1_000_000, min_count=2)


def sample_file(data: Path, name: str) -> Path:
    """The file of a set; raises DataError where it is absent."""
    file = data / FILES[name]
    if not file.is_file():
        raise DataError(f"{file}: expected the click data, which celu does not ship")
    return file


def prepare_sample(folder: Path, name: str, data: Path, split: Split) -> None:
    """Write the stores `folder`/guest/store and `folder`/host/store; raises DataError."""
    declared = PRESETS[name](split, KNOWN)
    targets = [Target(d, folder / party / "store") for party, d in declared.items()]
    prepare([sample_file(data, name)], targets)
