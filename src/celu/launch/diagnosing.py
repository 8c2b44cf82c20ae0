"""`celu doctor`: measure the link to each peer and gather the facts that its advice is based on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from celu import open_files
from celu.config.job import Job
from celu.config.party import PartySettings
from celu.doctor.diagnosis import diagnose_guest, diagnose_hosts
from celu.doctor.facts import LinkFacts, gather_facts
from celu.doctor.machine import read_certificates
from celu.doctor.measure import ProbePlan
from celu.doctor.probes import Clocks
from celu.engine.coding import Coding
from celu.errors import ConfigError
from celu.events import Callback, ignore
from celu.launch.endpoint import endpoint_of
from celu.transport.connect import open_links
from celu.transport.link import run_blocking


def diagnose_party(
    settings: PartySettings,
    job: Job,
    plan: ProbePlan,
    listening: Callable[[int], None],
    say: Callable[[str], None],
    on_event: Callback = ignore,
) -> list[LinkFacts]:
    """Measure the link to each peer. It reads no rows.

    Raises ConfigError, CertificateError, and what `celu.doctor` raises.
    """
    open_files.raise_limit()
    if not settings.peers:
        raise ConfigError("peers: expected at least one peer to measure the link to, got none")
    for host in job.hosts:
        Coding(job, host)  # raises ConfigError for an unknown codec before it connects
    endpoint = endpoint_of(settings, on_event)
    certificates = []
    if endpoint.keys is not None:
        certificates = read_certificates(settings.name, endpoint.keys, dt.datetime.now(dt.UTC))
    with open_links(endpoint, listening) as links:
        if settings.role == "guest":
            program = diagnose_hosts(settings.name, job, links, plan, Clocks(), say)
        else:
            program = diagnose_guest(settings.name, job, links[job.guest], Clocks(), say)
        measurements = run_blocking(program)
    return [gather_facts(settings, job, found, certificates) for found in measurements.values()]
