"""Links to examine: in one process and virtual time, with lines of every kind."""

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
from celu.doctor.measurement import Measured
from celu.doctor.probes import Watch
from celu.simulation import _run_together
from celu.transport.emulation import LinkEmulator
from celu.transport.link import Link
from celu.transport.memory import memory_links
from celu.transport.virtual_clock import VirtualClock

# Virtual seconds cost nothing, but each megabyte is looked at.
PLAN = ProbePlan(pings=6, bulk_s=0.5, max_bytes=64 << 20)


def make_job(*hosts: str, **fields: Any) -> celu.Job:
    terms = {name: celu.HostTerms(z_width=64) for name in hosts or ("host",)}
    return celu.Job(**{"rounds": 100, "hosts": terms, **fields})


def watch_of(clock: VirtualClock, ahead_s: float = 0.0) -> Watch:
    """A party's virtual time; its wall clock is ahead."""
    return Watch(
        clock.now,
        lambda: 1.7e9 + clock.now() + ahead_s,
        lambda seconds: clock.wait_until(clock.now() + seconds),
    )


@dataclass
class Room:
    """A guest and its hosts: the lines that each sends on, and what is odd about them."""

    job: celu.Job
    lines: Callable[
        [], tuple[LinkEmulator, LinkEmulator]
    ]  # the guest's, the host's; one pair a host
    plan: ProbePlan = PLAN
    host_job: celu.Job | None = None
    host_ahead_s: float = 0.0
    wrap: Callable[[Link], Link] = lambda link: link  # the guest's link
    wrap_host: Callable[[Link], Link] = lambda link: link

    def examine(self) -> tuple[dict[str, Diagnosis], Mapping[str, VirtualClock]]:
        """What the guest found; hosts find the same."""
        names = list(self.job.hosts)
        clocks = {name: VirtualClock() for name in ("guest", *names)}
        pairs = {
            name: memory_links(
                "guest", name, clocks=(clocks["guest"], clocks[name]), emulators=self.lines()
            )
            for name in names
        }
        programs: dict[str, Any] = {
            name: diagnose_guest(
                name,
                self.host_job or self.job,
                self.wrap_host(pairs[name][1]),
                watch_of(clocks[name], self.host_ahead_s),
                lambda words: None,
            )
            for name in names
        }
        links = {name: self.wrap(pair[0]) for name, pair in pairs.items()}
        programs["guest"] = diagnose_hosts(
            "guest", self.job, links, self.plan, watch_of(clocks["guest"]), lambda words: None
        )
        ends = [end for pair in pairs.values() for end in pair]
        results: dict[str, Any] = _run_together(programs, ends, clocks)
        for name in names:
            assert results[name]["guest"].measured == results["guest"][name].measured
        return results["guest"], clocks

    def measure(self) -> Measured:
        found, _ = self.examine()
        return found["host"].measured


def case_of(measured: Measured, job: celu.Job | None = None, **more: Any) -> LinkFacts:
    """A guest's case, all well but for what is given."""
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
        forecast=estimate_rounds(job, "host", measured),
        codecs=estimate_codecs(job, "host", measured),
        **{**defaults, **more},
    )


def warned(case: LinkFacts) -> dict[str, Finding]:
    """What a case is warned of, by what was looked at; each once."""
    findings = [finding for finding in advise(case) if finding.level == "warn"]
    assert all(finding.change for finding in findings), "a warning says what to change"
    return {finding.what: finding for finding in findings}
