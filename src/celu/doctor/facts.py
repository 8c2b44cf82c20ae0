"""All that advice about one link rests on, and what a piece of advice is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.doctor.diagnosis import Diagnosis, own_versions
from celu.doctor.estimate import RoundEstimate, estimate_codecs, estimate_rounds
from celu.doctor.machine import Certificate, Machine, this_machine
from celu.doctor.measurement import Measured, Way


@dataclass(frozen=True)
class Finding:
    """One thing about a link: what was looked at, whether it is well, and what to change."""

    what: str
    level: Literal["ok", "warn"]
    words: str
    change: str = ""


@dataclass(frozen=True)
class LinkFacts:
    """All that is known to one party of the link to one peer."""

    name: str
    peer: str
    role: str
    measured: Measured
    forecast: RoundEstimate
    codecs: dict[str, RoundEstimate]
    depth: int  # in the contract
    auto: bool  # the contract leaves depth and codec to the run
    rounds: int | None = None
    machine: Machine = field(default_factory=Machine)
    versions: dict[str, str] = field(default_factory=dict)
    peer_versions: dict[str, str] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    certificates: list[Certificate] = field(default_factory=list)
    connects: bool = True  # we to the peer, not the peer to us
    insecure: bool = False
    emulated: bool = False

    @property
    def sending(self) -> Way:
        """The way from us to the peer."""
        return self.measured.to_host if self.role == "guest" else self.measured.to_guest

    @property
    def receiving(self) -> Way:
        """The way from the peer to us."""
        return self.measured.to_guest if self.role == "guest" else self.measured.to_host

    def ways(self) -> Iterator[tuple[str, str, Way]]:
        """Both, each with its name in words and who sends."""
        yield f"to {self.peer}", self.name, self.sending
        yield f"from {self.peer}", self.peer, self.receiving


def gather_facts(
    settings: PartySettings, job: Job, examined: Diagnosis, certificates: list[Certificate]
) -> LinkFacts:
    """What was found about a peer, beside what this party knows by itself."""
    peer, measured = examined.peer, examined.measured
    host = peer if settings.role == "guest" else settings.name
    return LinkFacts(
        name=settings.name,
        peer=peer,
        role=settings.role,
        measured=measured,
        forecast=estimate_rounds(job, host, measured),
        codecs=estimate_codecs(job, host, measured),
        depth=job.method.depth,
        auto=job.auto,
        rounds=job.rounds,
        machine=this_machine(),
        versions=own_versions(),
        peer_versions=examined.versions,
        differing=examined.differing,
        certificates=[
            c for c in certificates if c.whose in (settings.name, f"authority of {peer}")
        ],
        connects=settings.peers[peer].connect is not None,
        insecure=settings.insecure,
        emulated=settings.link is not None,
    )


def seconds(value: float) -> str:
    """Seconds as a person reads them."""
    if value >= 120:
        return f"{value / 60:,.1f} min" if value < 7200 else f"{value / 3600:,.1f} h"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1000:.3g} ms" if value >= 0.001 else f"{value * 1000:.2f} ms"


def size(num_bytes: float) -> str:
    """Bytes as a person reads them."""
    return f"{num_bytes / 1e6:,.2f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:,.1f} kB"


def mbps(value: float) -> str:
    """A rate as a person reads it."""
    return f"{value:.3g} Mbps" if value < 1000 else f"{value / 1000:.3g} Gbps"
