"""The report of a soak: as a table, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from celu.run_folder import hardware, versions

from .judge import Finding
from .outages import Outage
from .samples import Sample


@dataclass(frozen=True)
class PartyReport:
    """One party's process over the whole run."""

    samples: Sequence[Sample]
    findings: Sequence[Finding]
    dashboard_pages: int
    dashboard_updates: int
    exit_code: int


@dataclass(frozen=True)
class Report:
    """A soak; it passed if there are no failures."""

    minutes: float
    settings: Mapping[str, Any]
    outages: Sequence[Outage]
    parties: Mapping[str, PartyReport]
    failures: Sequence[str]


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    kinds = Counter(outage.kind for outage in report.outages)
    total = sum(outage.seconds for outage in report.outages)
    yield (
        f"{report.minutes:g} minutes, {len(report.outages)} outages of {total:.0f} s in all: "
        + ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    )
    for name, party in report.parties.items():
        if not party.samples:
            continue
        end = party.samples[-1]
        yield (
            f"{name}: {end.rounds} rounds, link found down {end.links_down} times, "
            f"{100 * end.cpu_s / 60 / end.minute:.1f}% of a core, {party.dashboard_pages} views of "
            f"the dashboard with {party.dashboard_updates} updates, "
            f"events.jsonl {end.events_mib:.2f} MiB"
        )
        yield (
            f"  {'':12} {'first':>9} {'last':>9} {'limit':>9} {'peaks':>19} {'per hour':>9}  flat"
        )
        for f in party.findings:
            peaks = f"{f.first_peak:.1f} {f.last_peak:.1f}"
            yield (
                f"  {f.quantity:12} {f.first:9.1f} {f.last:9.1f} {f.limit:9.1f} {peaks:>19} "
                f"{f.per_hour:+9.2f}  {'yes' if f.is_flat else 'NO'}"
            )
    yield from (f"FAILED: {failure}" for failure in report.failures)


def figures(report: Report) -> dict[str, float]:
    """The figures of a soak, by names that never change."""
    found: dict[str, float] = {
        "minutes": report.minutes,
        "outages": len(report.outages),
        "outage_s": round(sum(outage.seconds for outage in report.outages), 1),
    }
    for name, party in report.parties.items():
        if party.samples:
            end = party.samples[-1]
            found[f"{name}_rounds"] = end.rounds
            found[f"{name}_link_down"] = end.links_down
            found[f"{name}_cpu_share"] = round(end.cpu_s / 60 / end.minute, 4)
            found[f"{name}_events_mib"] = end.events_mib
        for finding in party.findings:
            found[f"{name}_{finding.quantity}_first"] = finding.first
            found[f"{name}_{finding.quantity}_last"] = finding.last
            found[f"{name}_{finding.quantity}_per_hour"] = round(finding.per_hour, 3)
    return found


def to_json(report: Report, command: str) -> dict[str, Any]:
    """The report like those in docs/results, and all samples, one list for each quantity."""
    return {
        "bench": "soak",
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "hardware": hardware(),
        "seeds": [report.settings["seed"]],
        "settings": dict(report.settings),
        "rows": [
            {"party": name, **asdict(f), "flat": f.is_flat}
            for name, party in report.parties.items()
            for f in party.findings
        ],
        "figures": figures(report),
        "failures": list(report.failures),
        "outages": [[o.minute, o.kind, o.seconds] for o in report.outages],
        "parties": {
            name: {
                "exit_code": party.exit_code,
                "dashboard_pages": party.dashboard_pages,
                "dashboard_updates": party.dashboard_updates,
                "samples": {
                    f.name: [getattr(s, f.name) for s in party.samples] for f in fields(Sample)
                },
            }
            for name, party in report.parties.items()
        },
    }
