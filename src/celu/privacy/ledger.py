"""The ledger of a guest's labels: what hosts have received of them, as a sum of epsilons.

`privacy.json` lies beside the key of the labels. A run with the same key, epsilon, rows, labels and
classes has the same randomized labels, and adds nothing. Any other run randomizes all of them
again, and epsilons add up. The ledger is created before its key, so a key without one has lost it.
A damaged or lost ledger is refused, never reset.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from celu.config.privacy import Epsilon
from celu.config.reading import Settings, describe
from celu.errors import ConfigError
from celu.privacy.secret_key import LABELS, SecretKey

LEDGER = "privacy.json"
_MAX_BYTES = 1 << 20


class Release(Settings):
    """One way in which labels were randomized."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # its fingerprint
    epsilon: Epsilon
    classes: Annotated[int, Field(ge=2, le=10_000)]
    labels: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # their digest, keyed


class Ledger(Settings):
    """All ways in which a store's labels were randomized for hosts.

    `unprotected`: hosts have also received what follows from the true labels, in a run without
    `label_epsilon`.
    """

    format: Literal["celu-privacy-1"] = "celu-privacy-1"
    releases: Annotated[list[Release], Field(max_length=10_000)] = []
    unprotected: bool = False

    @property
    def total(self) -> float:
        """The epsilon of all releases together, infinite after an unprotected run."""
        return math.inf if self.unprotected else sum(r.epsilon for r in self.releases)

    def adding(self, release: Release, budget: float | None = None) -> Ledger:
        """The ledger after another run; raises ConfigError if that exceeds the budget."""
        if budget is not None and self.unprotected:
            raise ConfigError(
                f"privacy.budget: expected at most epsilon {budget:g} for these labels, got an "
                "earlier run without privacy.label_epsilon: hosts have received what follows from "
                "the true labels, which exceeds any budget; remove the budget"
            )
        if release in self.releases:
            return self
        ledger = self.model_copy(update={"releases": [*self.releases, release]})
        if budget is not None and ledger.total > budget * (1 + 1e-9):  # sums are rounded
            raise ConfigError(
                f"privacy.budget: expected at most epsilon {budget:g} for these labels, got "
                f"{ledger.total:g}: {self.total:g} is spent, and privacy.label_epsilon = "
                f"{release.epsilon:g} would add to it; use the key, epsilon, rows and "
                "labels of an earlier run, which add nothing, a smaller epsilon, or raise the "
                "budget"
            )
        return ledger


def read_label_key(source: bytes | Path | str | None) -> SecretKey:
    """The key of labels, as `SecretKey.read`; the file of a new one gets a ledger beside it."""
    if isinstance(source, Path | str) and not Path(source).exists():
        key = Path(source)
        with _locked(key.parent):  # another run may have spent something in the meantime
            if not key.exists() and not (key.parent / LEDGER).exists():
                _write(key.parent, Ledger())
    return SecretKey.read(source, LABELS)


def read_ledger(key: Path) -> Ledger:
    """The ledger beside a key; raises ConfigError if it is damaged, or lost while the key is there.

    Without either it is empty.
    """
    path = key.parent / LEDGER
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
    except FileNotFoundError:
        if not key.exists():
            return Ledger()
        raise ConfigError(
            f"{path}: expected what was spent on the labels of {key}, got no file; restore it from "
            f"a backup. If there is none, remove {key.name} too: the next run begins a new ledger "
            "at 0, to which you have to add what earlier runs spent"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return Ledger.model_validate_json(content)
    except ValidationError as error:
        raise ConfigError(
            f"{path}: expected what was spent on these labels, got: {describe(error)[0]}; restore "
            "the file from a backup"
        ) from error


def spend(key: Path, release: Release, budget: float | None) -> Ledger:
    """Record a release before anything of it is sent; raises ConfigError as `Ledger.adding`."""
    with _locked(key.parent):
        before = read_ledger(key)
        ledger = before.adding(release, budget)
        if ledger is not before:
            _write(key.parent, ledger)
    return ledger


def record_unprotected(key: Path) -> None:
    """Record a run without label privacy where there is a key or ledger; raises ConfigError."""
    if not key.exists() and not (key.parent / LEDGER).exists():
        return
    with _locked(key.parent):
        ledger = read_ledger(key)
        if not ledger.unprotected:
            _write(key.parent, ledger.model_copy(update={"unprotected": True}))


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
