"""The facts about one link, and the findings that rules derive from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.doctor.diagnosis import Diagnosis, own_versions
from celu.doctor.estimate import RoundEstimate, estimate_codecs, estimate_rounds
from celu.doctor.machine import Certificate, Machine, this_machine
from celu.doctor.measurement import Direction, Measurement


@dataclass(frozen=True)
class Finding:
    """One piece of advice: its topic, whether something is wrong, and what to change."""

    topic: str
    level: Literal["ok", "hint", "warn"]  # a hint: nothing is wrong, and something could be faster
    message: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """As stored by `celu doctor --out`."""
        return {
            "what": self.topic,
            "level": self.level,
            "words": self.message,
            "change": self.fix,
        }


@dataclass(frozen=True)
class LinkFacts:
    """Everything that one party knows about the link to one peer."""

    name: str
    peer: str
    role: str
    measured: Measurement
    estimate: RoundEstimate
    codecs: dict[str, RoundEstimate]
    depth: int  # of the contract
    auto: bool  # the run chooses depth and codec
    rounds: int | None = None
    machine: Machine = field(default_factory=Machine)
    versions: dict[str, str] = field(default_factory=dict)
    peer_versions: dict[str, str] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    certificates: list[Certificate] = field(default_factory=list)
    connects: bool = True  # we connect to the peer, not the peer to us
    insecure: bool = False
    emulated: bool = False

    @property
    def sending(self) -> Direction:
        """From us to the peer."""
        return self.measured.to_host if self.role == "guest" else self.measured.to_guest

    @property
    def receiving(self) -> Direction:
        """From the peer to us."""
        return self.measured.to_guest if self.role == "guest" else self.measured.to_host

    @property
    def clock_ahead_s(self) -> float:
        """The peer's clock minus ours."""
        return self.measured.clock_s if self.role == "guest" else -self.measured.clock_s

    def directions(self) -> Iterator[tuple[str, str, Direction]]:
        """Both directions, each with its name for messages and the name of its sender."""
        yield f"to {self.peer}", self.name, self.sending
        yield f"from {self.peer}", self.peer, self.receiving

    def to_json(self) -> dict[str, Any]:
        """As stored by `celu doctor --out`."""
        facts = asdict(self)
        facts["forecast"] = facts.pop("estimate")
        return {**facts, "measured": self.measured.to_body()}


def gather_facts(
    settings: PartySettings, job: Job, diagnosis: Diagnosis, certificates: list[Certificate]
) -> LinkFacts:
    """Combine the diagnosis of a peer with what this party knows by itself."""
    peer, measured = diagnosis.peer, diagnosis.measured
    host = peer if settings.role == "guest" else settings.name
    return LinkFacts(
        name=settings.name,
        peer=peer,
        role=settings.role,
        measured=measured,
        estimate=estimate_rounds(job, host, measured),
        codecs=estimate_codecs(job, host, measured),
        depth=job.method.depth,
        auto=job.auto,
        rounds=job.rounds,
        machine=this_machine(),
        versions=own_versions(),
        peer_versions=diagnosis.versions,
        differing=diagnosis.differing,
        certificates=[
            c for c in certificates if c.whose in (settings.name, f"authority of {peer}")
        ],
        connects=settings.peers[peer].connect is not None,
        insecure=settings.insecure,
        emulated=settings.link is not None,
    )


def seconds(value: float) -> str:
    """Format seconds for people."""
    if value >= 120:
        return f"{value / 60:,.1f} min" if value < 7200 else f"{value / 3600:,.1f} h"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1000:.3g} ms" if value >= 0.001 else f"{value * 1000:.2f} ms"


def size(num_bytes: float) -> str:
    """Format a number of bytes for people."""
    return f"{num_bytes / 1e6:,.2f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:,.1f} kB"


def mbps(value: float) -> str:
    """Format a rate for people."""
    return f"{value:.3g} Mbps" if value < 1000 else f"{value / 1000:.3g} Gbps"
