"""Rules about the parties: contracts, versions, certificates and clocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from celu.doctor.facts import Finding, LinkFacts, seconds
from celu.doctor.machine import Certificate

_WARN_DAYS = 30


def contract(facts: LinkFacts) -> Iterator[Finding]:
    """A run refuses contracts that differ."""
    for difference in facts.differing:
        fix = "Use the same job.toml at all parties; celu run refuses different ones."
        yield Finding("contract", "warn", difference, fix)
    if not facts.differing:
        yield Finding("contract", "ok", "both parties have the same job.toml")


def versions(facts: LinkFacts) -> Iterator[Finding]:
    """Releases may differ in their protocol, and libraries in the last bits of results."""
    differing = [n for n in facts.versions if facts.versions[n] != facts.peer_versions.get(n)]
    for name in differing:
        theirs = facts.peer_versions.get(name)
        message = f"{name} is {facts.versions[name]} here and {theirs} at {facts.peer}"
        if name in ("celu", "protocol"):
            yield Finding("versions", "warn", message, "Install the same release at all parties.")
        else:
            yield Finding("versions", "ok", f"{message}: results may differ in their last bits")
    if not differing:
        same = ", ".join(f"{name} {value}" for name, value in facts.versions.items())
        yield Finding("versions", "ok", f"the same at both parties: {same}")


def certificates(facts: LinkFacts) -> Iterator[Finding]:
    """A run that lasts longer than a certificate cannot be resumed."""
    return certificate_findings(facts.name, facts.certificates, insecure=facts.insecure)


def certificate_findings(
    name: str, certificates: Iterable[Certificate], *, insecure: bool
) -> Iterator[Finding]:
    """The certificates of the party `name`, and whether they expire soon."""
    if insecure:
        yield Finding(
            "security",
            "warn",
            "the link is neither encrypted nor authenticated",
            "Remove insecure = true from party.toml, and make keys with celu certs.",
        )
        return
    yield Finding("security", "ok", "mutual TLS 1.3; no other version is accepted")
    for certificate in certificates:
        message = (
            f"{certificate.whose} ({certificate.subject}) is valid until {certificate.expires}"
        )
        if certificate.days_left >= _WARN_DAYS:
            yield Finding("certificate", "ok", message)
        elif certificate.whose == name:
            fix = f"Make a new one: celu certs party {name}."
            yield _expiring(message, certificate.days_left, fix)
        else:
            owner = certificate.whose.removeprefix("authority of ")
            yield _expiring(message, certificate.days_left, f"Ask {owner} for a new ca.pem.")


def _expiring(message: str, days_left: float, fix: str) -> Finding:
    return Finding("certificate", "warn", f"{message}: {days_left:.0f} days left", fix)


def clocks(facts: LinkFacts) -> Iterator[Finding]:
    """Training does not depend on clocks; certificates and comparing logs do."""
    ahead, error = facts.clock_ahead_s, facts.measured.clock_error_s
    direction = "ahead of" if ahead > 0 else "behind"
    message = (
        f"the clock of {facts.peer} is {seconds(abs(ahead))} {direction} ours, ± {seconds(error)}"
    )
    if abs(ahead) - error > 1.0:
        fix = "Synchronize both machines' clocks with NTP; certificate dates depend on them."
        yield Finding("clocks", "warn", message, fix)
    else:
        yield Finding("clocks", "ok", message)
