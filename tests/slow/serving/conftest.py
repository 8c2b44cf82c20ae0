"""Both parties' files, made once, and a copy for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slow.serving.served import Served, make_files, served_copy


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "files"
    make_files(folder)
    return folder


@pytest.fixture
def served(template: Path, tmp_path: Path) -> Iterator[Served]:
    with served_copy(template, tmp_path / "files") as copy:
        yield copy
