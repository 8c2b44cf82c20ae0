"""Rules about the parties: what they hold must agree, and be valid for long enough."""

from __future__ import annotations

from collections.abc import Iterator

from celu.doctor.facts import Finding, LinkFacts, seconds

_WARN_DAYS = 30


def contract(case: LinkFacts) -> Iterator[Finding]:
    """A run would refuse contracts that differ."""
    for field_ in case.differing:
        yield Finding("contract", "warn", field_, "Agree on one job.toml; celu run refuses two.")
    if not case.differing:
        yield Finding("contract", "ok", "both parties hold the same job.toml")


def versions(case: LinkFacts) -> Iterator[Finding]:
    """Another release may speak another protocol; other libraries give other last bits."""
    differing = [n for n in case.versions if case.versions[n] != case.peer_versions.get(n)]
    for name in differing:
        theirs = case.peer_versions.get(name)
        words = f"{name} is {case.versions[name]} here and {theirs} at {case.peer}"
        if name in ("celu", "protocol"):
            yield Finding("versions", "warn", words, "Install the same release at all parties.")
        else:
            yield Finding("versions", "ok", f"{words}: results may differ in their last bits")
    if not differing:
        same = ", ".join(f"{name} {value}" for name, value in case.versions.items())
        yield Finding("versions", "ok", f"the same at both parties: {same}")


def certificates(case: LinkFacts) -> Iterator[Finding]:
    """A run that outlives a certificate cannot be started again."""
    if case.insecure:
        yield Finding(
            "security",
            "warn",
            "nothing is encrypted, and nobody knows who answers",
            "Remove insecure = true from party.toml; celu certs makes keys.",
        )
        return
    yield Finding("security", "ok", "mutual TLS 1.3, the only version that is accepted")
    for found in case.certificates:
        words = f"{found.whose} ({found.subject}) is valid until {found.expires}"
        if found.days_left >= _WARN_DAYS:
            yield Finding("certificate", "ok", words)
        elif found.whose == case.name:
            change = f"Make a new one: celu certs party {case.name}."
            yield _expiring(words, found.days_left, change)
        else:
            owner = found.whose.removeprefix("authority of ")
            yield _expiring(words, found.days_left, f"Ask {owner} for a new ca.pem.")


def _expiring(words: str, days_left: float, change: str) -> Finding:
    return Finding("certificate", "warn", f"{words}: {days_left:.0f} days left", change)


def clocks(case: LinkFacts) -> Iterator[Finding]:
    """Training does not look at clocks; certificates and whoever compares two logs do."""
    ahead = case.measured.clock_s if case.role == "guest" else -case.measured.clock_s
    error = case.measured.clock_error_s
    direction = "ahead of" if ahead > 0 else "behind"
    words = (
        f"the clock of {case.peer} is {seconds(abs(ahead))} {direction} ours, "
        f"give or take {seconds(error)}"
    )
    if abs(ahead) - error > 1.0:
        change = "Keep both machines' clocks with NTP; a certificate's dates depend on them."
        yield Finding("clocks", "warn", words, change)
    else:
        yield Finding("clocks", "ok", words)
