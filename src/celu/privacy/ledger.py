"""The ledger of a guest's labels: what hosts have received of them, as a sum of epsilons.

`privacy.json` lies beside the key of the labels. A run with the same key, epsilon, rows, labels and
classes has the same randomized labels, and adds nothing. Any other run randomizes all of them
again, and epsilons add up. A damaged ledger is refused, never reset.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from celu.config.privacy import Epsilon
from celu.config.reading import Settings, describe
from celu.errors import ConfigError

LEDGER = "privacy.json"
_MAX_BYTES = 1 << 20


class Release(Settings):
    """One way in which labels were randomized."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # its fingerprint
    epsilon: Epsilon
    classes: Annotated[int, Field(ge=2, le=10_000)]
    labels: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # their digest, keyed


class Ledger(Settings):
    """All ways in which a store's labels were randomized for hosts."""

    format: Literal["celu-privacy-1"] = "celu-privacy-1"
    releases: Annotated[list[Release], Field(max_length=10_000)] = []

    @property
    def total(self) -> float:
        """The epsilon of all releases together."""
        return sum(release.epsilon for release in self.releases)

    def adding(self, release: Release, budget: float | None = None) -> Ledger:
        """The ledger after another run; raises ConfigError if that exceeds the budget."""
        if release in self.releases:
            return self
        ledger = Ledger(releases=[*self.releases, release])
        if budget is not None and ledger.total > budget * (1 + 1e-9):  # sums are rounded
            raise ConfigError(
                f"privacy.budget: expected at most epsilon {budget:g} for these labels, got "
                f"{ledger.total:g}: {self.total:g} is spent, and privacy.label_epsilon = "
                f"{release.epsilon:g} would add to it; use the key, epsilon, rows and "
                "labels of an earlier run, which add nothing, a smaller epsilon, or raise the "
                "budget"
            )
        return ledger


def read_ledger(folder: Path) -> Ledger:
    """The ledger of a folder, empty if it has none; raises ConfigError if it is damaged."""
    path = folder / LEDGER
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return Ledger.model_validate_json(content)
    except ValidationError as error:
        raise ConfigError(
            f"{path}: expected what was spent on these labels, got: {describe(error)[0]}; restore "
            "the file from a backup"
        ) from error


def spend(folder: Path, release: Release, budget: float | None) -> Ledger:
    """Record a release before anything of it is sent; raises ConfigError as `Ledger.adding`."""
    with _locked(folder):
        before = read_ledger(folder)
        ledger = before.adding(release, budget)
        if ledger is not before:
            _write(folder, ledger)
    return ledger


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Of two runs that start at once, the second waits: neither release is lost."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be opened: {error.strerror or error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(folder: Path, ledger: Ledger) -> None:
    path, partial = folder / LEDGER, folder / f".{LEDGER}.partial"
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(ledger.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
