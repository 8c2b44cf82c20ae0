"""The store that the tests of data read."""

from __future__ import annotations

from pathlib import Path

import pytest

from celu.data.store import Store
from data.samples import SIZES, columns
from stores import write_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(tmp_path / "store", columns(), SIZES)
