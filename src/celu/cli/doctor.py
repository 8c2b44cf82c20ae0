"""`celu doctor`: measure the link before a run, and print what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from celu.cli.console import Console
from celu.cli.progress import link_message
from celu.cli.run import (
    Connect,
    JobFile,
    Listen,
    PartyFile,
    awaited,
    invitation,
    job_option,
    with_options,
)
from celu.config.job import read_job
from celu.config.party import check_names, read_party
from celu.errors import ConfigError
from celu.events import Event

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
        typer.Option(
            min=0.05,
            max=60,
            help="Seconds of bulk transfer in each direction; the guest's value is used.",
        ),
    ] = 2.0,
    out: Annotated[
        Path | None, typer.Option(help="Write all results to this file, as JSON.")
    ] = None,
) -> None:
    """Measure the link to each peer before a run, and print what to change.

    Each company runs this with the files and options of [bold]celu run[/bold]; no row is read and
    nothing is trained. Each side sees the latency, the bandwidth in each direction and in full
    duplex, the cost of gateways and pauses, differences in contracts, versions and clocks, and the
    estimated time of a round of this job. The exit code is 0 if the measurement succeeded, even
    with warnings.
    """
    contract = read_job(job)
    settings = with_options(read_party(party), connect, listen)
    check_names(contract, settings, party)
    if out is not None and not out.resolve().parent.is_dir():
        raise ConfigError(f"--out: the folder of {out} does not exist; choose another file")
    console = Console()
    from celu.doctor.advice import advise  # after the settings are checked: torch takes
    from celu.doctor.measure import ProbePlan  # seconds
    from celu.launch.diagnosing import diagnose_party

    def on_event(event: Event) -> None:
        if (text := link_message(event)) is not None:
            console.print(f"{settings.name}: {text}", soft_wrap=True)

    if all(peer.connect for peer in settings.peers.values()):  # else it prints their command
        console.print(f"{settings.name}: waiting for {escape(awaited(settings))}", soft_wrap=True)
    all_facts = diagnose_party(
        settings,
        contract,
        ProbePlan(bulk_s=seconds),
        lambda port: console.print(
            escape(invitation(settings, port, "doctor", job_option(job))), soft_wrap=True
        ),
        lambda text: console.print(f"{settings.name}: {escape(text)} ..."),
        on_event,
    )
    findings = {facts.peer: advise(facts) for facts in all_facts}
    for facts in all_facts:
        console.print(_measurement_table(facts))
        console.print(_codec_table(facts))
        for finding in findings[facts.peer]:
            print_finding(console, finding)
    if out is not None:
        _write(out, settings.name, all_facts, findings)
        console.print(f"written to {escape(str(out))}", soft_wrap=True)


def _measurement_table(facts: LinkFacts) -> Table:
    from celu.doctor.facts import mbps, size
    from celu.doctor.facts import seconds as s

    measured = facts.measured
    table = Table(title=f"{facts.name}: link to {facts.peer}", show_header=False)
    spread = f"min {s(measured.rtt_min_s)}, jitter {s(measured.jitter_s)}"
    table.add_row("round trip", f"{s(measured.rtt_median_s)} ({spread})")
    for name, _, direction in facts.directions():
        duplex = f"{mbps(direction.duplex_mbps)} in full duplex ({direction.share:.0%})"
        table.add_row(name, f"{mbps(direction.mbps)}, {duplex}")
    for name, _, direction in facts.directions():
        burst = f"{size(direction.burst_bytes)} in {s(direction.burst_s)}"
        table.add_row(f"burst {name}", f"{burst}, {s(direction.idle_burst_s)} after a pause")
    error_ms = measured.clock_error_s * 1000
    table.add_row("peer's clock", f"{facts.clock_ahead_s * 1000:+.2f} ms, ± {error_ms:.2f} ms")
    kernel = facts.machine
    table.add_row("this machine", f"congestion control {kernel.congestion_control or 'unknown'}")
    for name in ("tcp_wmem", "tcp_rmem"):
        sizes = getattr(kernel, name)
        if sizes is not None:
            table.add_row("", f"{name} up to {sizes[2]:,} bytes")
    return table


def _codec_table(facts: LinkFacts) -> Table:
    from celu.doctor.facts import seconds, size

    table = Table(title=f"estimated round with {facts.peer}, by codec, without computation")
    table.add_column("codec")
    headings = (
        "to the guest",
        "to the host",
        "1 in flight",
        f"{facts.depth} (job.toml)",
        "link full",
    )
    for heading in (*headings, "in flight to fill it"):
        table.add_column(heading, justify="right")
    rows = {"in job.toml": facts.estimate, **facts.codecs}
    for name, estimate in rows.items():
        shown = f"{name}: {estimate.codec}" if name == "in job.toml" else name
        table.add_row(
            escape(shown),
            size(estimate.to_guest_bytes),
            size(estimate.to_host_bytes),
            seconds(estimate.serial_s),
            seconds(estimate.seconds(facts.depth)),
            seconds(estimate.full_s),
            str(estimate.depth),
        )
    return table


def print_finding(console: Console, finding: Finding) -> None:
    """Print a finding, and what to change."""
    colour = "green" if finding.level == "ok" else "yellow"
    console.print(
        f"[{colour}]{finding.level:4}[/{colour}] [bold]{finding.topic}[/bold]: "
        f"{escape(finding.message)}",
        soft_wrap=True,
        highlight=False,
    )
    if finding.fix:
        console.print(f"     -> {escape(finding.fix)}", soft_wrap=True, highlight=False)


def _write(
    path: Path, name: str, all_facts: list[LinkFacts], findings: dict[str, list[Finding]]
) -> None:
    peers: dict[str, Any] = {
        facts.peer: {**facts.to_json(), "findings": [f.to_json() for f in findings[facts.peer]]}
        for facts in all_facts
    }
    text = json.dumps({"party": name, "peers": peers}, indent=2)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out: {path} cannot be written: {error}") from error
