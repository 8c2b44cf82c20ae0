"""What a run checks of its party before it waits for peers, and `celu check` without them.

Both use this code, so that a check refuses what a run would refuse. It opens no connection.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.engine.schedule import Schedule
from celu.engine.setup import RunTerms
from celu.engine.setup import check_party as check_rows
from celu.launch.label_budget import check_label_budget
from celu.launch.starting import load_start
from celu.party import Guest, Host
from celu.privacy.ledger import Ledger


class Ready(NamedTuple):
    """What follows from a party's settings, rows and modules for its run."""

    schedule: Schedule
    terms: RunTerms
    ledger: Ledger | None  # of label privacy, with this run


def make_ready(
    settings: PartySettings, job: Job, party: Guest | Host, terms: RunTerms | None = None
) -> Ready:
    """Check a party, and load the weights that it starts from; raises CeluError."""
    terms = terms or RunTerms()
    ledger = check_label_budget(settings, job, party)
    if settings.start is not None:
        terms = replace(terms, start=load_start(settings.start, settings.name, party))
    return Ready(check_rows(settings.name, party, job), terms, ledger)
