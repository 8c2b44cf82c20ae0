"""Diagnose links in one process and virtual time, over emulated links of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import celu
from celu.doctor.advice import advise
from celu.doctor.diagnosis import Diagnosis, diagnose_guest, diagnose_hosts, own_versions
from celu.doctor.estimate import estimate_codecs, estimate_rounds
from celu.doctor.facts import Finding, LinkFacts
from celu.doctor.measure import ProbePlan
from celu.doctor.measurement import Measurement
from celu.doctor.probes import Clocks
from celu.transport.emulation import LinkEmulator
from celu.transport.link import Link
from celu.transport.memory import memory_links, run_together
from celu.transport.virtual_clock import VirtualClock

# Virtual seconds cost nothing, but every megabyte is copied.
PLAN = ProbePlan(pings=6, bulk_s=0.5, max_bytes=64 << 20)


def make_job(*hosts: str, **fields: Any) -> celu.Job:
    terms = {name: celu.HostTerms(z_width=64) for name in hosts or ("host",)}
    return celu.Job(**{"rounds": 100, "hosts": terms, **fields})


def clocks_of(clock: VirtualClock, ahead_s: float = 0.0) -> Clocks:
    """A party's virtual time; its time of day is ahead by `ahead_s`."""
    return Clocks(
        clock.now,
        lambda: 1.7e9 + clock.now() + ahead_s,
        lambda seconds: clock.wait_until(clock.now() + seconds),
    )


@dataclass
class Setup:
    """A guest and its hosts with emulated links; `wrap` and `wrap_host` make a party misbehave."""

    job: celu.Job
    # Called once for each host; the emulators pace what the guest sends and what the host sends.
    make_emulators: Callable[[], tuple[LinkEmulator, LinkEmulator]]
    plan: ProbePlan = PLAN
    host_job: celu.Job | None = None
    host_ahead_s: float = 0.0
    wrap: Callable[[Link], Link] = lambda link: link  # the guest's link
    wrap_host: Callable[[Link], Link] = lambda link: link

    def diagnose(self) -> tuple[dict[str, Diagnosis], Mapping[str, VirtualClock]]:
        """The guest's diagnoses; asserts that the hosts have the same measurements."""
        names = list(self.job.hosts)
        clocks = {name: VirtualClock() for name in ("guest", *names)}
        pairs = {
            name: memory_links(
                "guest",
                name,
                clocks=(clocks["guest"], clocks[name]),
                emulators=self.make_emulators(),
            )
            for name in names
        }
        programs: dict[str, Any] = {
            name: diagnose_guest(
                name,
                self.host_job or self.job,
                self.wrap_host(pairs[name][1]),
                clocks_of(clocks[name], self.host_ahead_s),
                lambda text: None,
            )
            for name in names
        }
        links = {name: self.wrap(pair[0]) for name, pair in pairs.items()}
        programs["guest"] = diagnose_hosts(
            "guest", self.job, links, self.plan, clocks_of(clocks["guest"]), lambda text: None
        )
        ends = [end for pair in pairs.values() for end in pair]
        results: dict[str, Any] = run_together(programs, ends, clocks)
        for name in names:
            assert results[name]["guest"].measured == results["guest"][name].measured
        return results["guest"], clocks

    def measure(self) -> Measurement:
        found, _ = self.diagnose()
        return found["host"].measured


def make_facts(measured: Measurement, job: celu.Job | None = None, **more: Any) -> LinkFacts:
    """A guest's facts: nothing wrong except what is passed."""
    job = job or make_job()
    defaults: dict[str, Any] = {
        "name": "guest",
        "peer": "host",
        "role": "guest",
        "depth": job.method.depth,
        "auto": job.auto,
        "rounds": job.rounds,
        "versions": own_versions(),
        "peer_versions": own_versions(),
    }
    return LinkFacts(
        measured=measured,
        estimate=estimate_rounds(job, "host", measured),
        codecs=estimate_codecs(job, "host", measured),
        **{**defaults, **more},
    )


def warned(facts: LinkFacts) -> dict[str, Finding]:
    """The warnings by topic."""
    findings = [finding for finding in advise(facts) if finding.level == "warn"]
    assert all(finding.fix for finding in findings), "every warning has a fix"
    return {finding.topic: finding for finding in findings}
