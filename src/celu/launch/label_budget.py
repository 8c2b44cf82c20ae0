"""What a run spends of the privacy of the guest's labels, checked before it starts."""

from __future__ import annotations

from pathlib import Path

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.errors import ConfigError
from celu.party import Guest, Host
from celu.privacy.ledger import (
    Ledger,
    Release,
    read_label_key,
    read_ledger,
    record_unprotected,
    spend,
)
from celu.privacy.randomized_response import digest_labels


def check_label_budget(settings: PartySettings, job: Job, party: Guest | Host) -> Ledger | None:
    """The ledger after this run, if it has one; raises ConfigError if it exceeds the budget.

    Without `label_epsilon` a run reveals all labels, which exceeds any budget.
    """
    budget = settings.privacy.budget
    if isinstance(party, Host) or not job.hosts:
        return None
    if job.privacy.label_epsilon is None:
        if budget is not None:
            raise ConfigError(
                f"privacy.budget: expected privacy.label_epsilon in job.toml, got none: without it "
                f"hosts learn the labels, which exceeds any budget ({budget:g}); agree on a "
                "label_epsilon, or remove the budget"
            )
        return None
    place = _place(party, job)
    if place is not None:
        key, release = place
        return read_ledger(key).adding(release, budget)
    if budget is not None:
        raise ConfigError(
            "privacy.budget: expected a label_key that is a file, beside which the ledger lies, "
            "got bytes; pass a path, or remove the budget"
        )
    return None


def spend_label_budget(settings: PartySettings, job: Job, party: Guest | Host) -> None:
    """Record what this run spends, before anything is sent; raises ConfigError.

    A run without `label_epsilon` is recorded where there is a key, so that a later budget knows it.
    """
    if isinstance(party, Host) or not job.hosts:
        return
    has_ledger = check_label_budget(settings, job, party) is not None
    if job.privacy.label_epsilon is None and isinstance(party.label_key, Path):
        record_unprotected(party.label_key)
    if not has_ledger:
        return
    place = _place(party, job)
    if place is not None:
        spend(*place, settings.privacy.budget)


def _place(guest: Guest, job: Job) -> tuple[Path, Release] | None:
    """The file of the key, and what this run adds to its ledger; None for a key without a file."""
    key = read_label_key(guest.label_key)
    if key.path is None or job.privacy.label_epsilon is None:
        return None
    classes = guest.label_map.classes or ()
    release = Release(
        key=key.fingerprint,
        epsilon=job.privacy.label_epsilon,
        classes=len(classes),
        labels=digest_labels(key, guest.labelled_rows, classes),
    )
    return key.path, release
