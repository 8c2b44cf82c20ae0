"""Federations of real processes, and undisturbed runs to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.parties import Federation, Ground, ground_at

Federate = Callable[..., Federation]


@pytest.fixture(scope="package")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground_at(tmp_path_factory.mktemp("ground")) as made:
        yield made


@pytest.fixture(scope="package")
def whole(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return ground.undisturbed(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def federate(ground: Ground, tmp_path: Path) -> Iterator[Federate]:
    """Makes federations with given settings, and kills their processes when the test ends."""
    made: list[Federation] = []

    def make(**settings: Any) -> Federation:
        made.append(ground.federation(tmp_path / f"{len(made)}", **settings))
        return made[-1]

    yield make
    for federation in made:
        federation.stop()
