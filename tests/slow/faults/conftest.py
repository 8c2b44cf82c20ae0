"""Federations of real processes, and runs without faults to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.parties import Environment, Federation, open_environment

Federate = Callable[..., Federation]


@pytest.fixture(scope="package")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    with open_environment(tmp_path_factory.mktemp("environment")) as made:
        yield made


@pytest.fixture(scope="package")
def baseline(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return environment.run_without_faults(tmp_path_factory.mktemp("baseline"))


@pytest.fixture
def federate(environment: Environment, tmp_path: Path) -> Iterator[Federate]:
    """Makes federations with given settings, and kills their processes when the test ends."""
    made: list[Federation] = []

    def make(**settings: Any) -> Federation:
        made.append(environment.federation(tmp_path / f"{len(made)}", **settings))
        return made[-1]

    yield make
    for federation in made:
        federation.stop()
