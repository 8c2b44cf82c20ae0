"""`celu doctor`: measure the link before a run, and say what to change."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from celu.cli.run import Connect, JobFile, Listen, PartyFile, invitation, with_options
from celu.config.job import read_job
from celu.config.party import check_names, read_party
from celu.errors import ConfigError

if TYPE_CHECKING:
    from celu.doctor.facts import Finding, LinkFacts


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    party: PartyFile,
    job: JobFile = Path("job.toml"),
    connect: Connect = None,
    listen: Listen = None,
    seconds: Annotated[
        float,
        typer.Option(min=0.05, max=60, help="How long bulk is sent each way; the guest's counts."),
    ] = 2.0,
    out: Annotated[
        Path | None, typer.Option(help="A file for everything that was found, as JSON.")
    ] = None,
) -> None:
    """Measure the link to each peer before a run, and say in words what to change.

    Each company runs this with the files and options of [bold]celu run[/bold]; no row is read and
    nothing is trained. Each side is told latency, bandwidth one way and both ways at once, what a
    gateway or an idle line costs, whether contracts, versions and clocks agree, and how long a
    round of this job takes. Exit code 0 means that it could measure, whatever it found.
    """
    contract = read_job(job)
    settings = with_options(read_party(party), connect, listen)
    check_names(contract, settings, party)
    if out is not None and not out.resolve().parent.is_dir():
        raise ConfigError(f"--out: expected a file in a folder that exists, got {out}")
    console = Console()
    from celu.doctor.advice import advise  # after the settings are found sound: torch takes
    from celu.doctor.measure import ProbePlan  # seconds
    from celu.launch.diagnosing import diagnose_party

    cases = diagnose_party(
        settings,
        contract,
        ProbePlan(bulk_s=seconds),
        lambda port: console.print(invitation(settings, port, "doctor"), soft_wrap=True),
        lambda words: console.print(f"{settings.name}: {words} ..."),
    )
    found = {case.peer: advise(case) for case in cases}
    for case in cases:
        console.print(_measurements(case))
        console.print(_codecs(case))
        for finding in found[case.peer]:
            _show(console, finding)
    if out is not None:
        _write(out, settings.name, cases, found)
        console.print(f"written to {out}", soft_wrap=True)


def _measurements(case: LinkFacts) -> Table:
    from celu.doctor.facts import mbps, size
    from celu.doctor.facts import seconds as s

    measured = case.measured
    table = Table(title=f"{case.name}: the link to {case.peer}", show_header=False)
    trip = f"{s(measured.rtt_median_s)}, at least {s(measured.rtt_min_s)}"
    table.add_row("there and back", f"{trip}, jitter {s(measured.jitter_s)}")
    for where, _, way in case.ways():
        at_once = f"{mbps(way.duplex_mbps)} with both ways in use ({way.share:.0%})"
        table.add_row(where, f"{mbps(way.mbps)}, {at_once}")
    for where, _, way in case.ways():
        rested = f"{size(way.parcel_bytes)} in {s(way.parcel_s)}, {s(way.rested_s)} after a rest"
        table.add_row(f"some {where}", rested)
    ahead = measured.clock_s if case.role == "guest" else -measured.clock_s
    table.add_row(
        "clock there", f"{ahead * 1000:+.2f} ms, ± {measured.clock_error_s * 1000:.2f} ms"
    )
    kernel = case.machine
    table.add_row("this machine", f"congestion control {kernel.congestion_control or 'unknown'}")
    for name in ("tcp_wmem", "tcp_rmem"):
        sizes = getattr(kernel, name)
        if sizes is not None:
            table.add_row("", f"{name} up to {sizes[2]:,} bytes")
    return table


def _codecs(case: LinkFacts) -> Table:
    from celu.doctor.facts import seconds, size

    table = Table(title=f"a round with {case.peer}, by codec, without computing")
    table.add_column("codec")
    headings = ("to the guest", "to the host", "one in flight", f"{case.depth} (job.toml)", "full")
    for heading in (*headings, "in flight when full"):
        table.add_column(heading, justify="right")
    rows = {"in job.toml": case.forecast, **case.codecs}
    for name, found in rows.items():
        shown = f"{name}: {found.codec}" if name == "in job.toml" else name
        table.add_row(
            escape(shown),
            size(found.to_guest_bytes),
            size(found.to_host_bytes),
            seconds(found.serial_s),
            seconds(found.seconds(case.depth)),
            seconds(found.full_s),
            str(found.depth),
        )
    return table


def _show(console: Console, finding: Finding) -> None:
    colour = "green" if finding.level == "ok" else "yellow"
    console.print(
        f"[{colour}]{finding.level:4}[/{colour}] [bold]{finding.what}[/bold]: "
        f"{escape(finding.words)}",
        soft_wrap=True,
        highlight=False,
    )
    if finding.change:
        console.print(f"     -> {escape(finding.change)}", soft_wrap=True, highlight=False)


def _write(path: Path, name: str, cases: list[LinkFacts], found: dict[str, list[Finding]]) -> None:
    peers: dict[str, Any] = {
        case.peer: {**asdict(case), "findings": [asdict(f) for f in found[case.peer]]}
        for case in cases
    }
    text = json.dumps({"party": name, "peers": peers}, indent=2)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out: expected a file to write, got {path}: {error}") from error
