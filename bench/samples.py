"""Stores from the user's copies of the public click data, or from samples of them."""

from __future__ import annotations

from pathlib import Path

from celu.config.columns import Category
from celu.config.schema import Split
from celu.errors import DataError
from celu.prepare.pipeline import Target, prepare
from celu.prepare.presets import PRESETS

FILES = {"criteo": "criteo_random.tsv.gz", "avazu": "avazu_all.csv.gz"}
# A value that occurs in one training row only would be memorized: it gets the unseen values' code.
VOCABULARY = Category(vocabulary=1_000_000, min_count=2)


def sample_file(data: Path, name: str) -> Path:
    """The file of a dataset; raises DataError if it is missing."""
    file = data / FILES[name]
    if not file.is_file():
        raise DataError(f"{file} does not exist: celu does not ship this click data")
    return file


def prepare_sample(folder: Path, name: str, data: Path, split: Split) -> None:
    """Write the stores `folder`/guest/store and `folder`/host/store; raises DataError."""
    declared = PRESETS[name](split, VOCABULARY)
    targets = [Target(d, folder / party / "store") for party, d in declared.items()]
    prepare([sample_file(data, name)], targets)
