"""`celu check`: check one party's files before its peers are there."""

from __future__ import annotations

from pathlib import Path

import typer

from celu.cli.console import Console
from celu.cli.doctor import print_finding
from celu.cli.monitors import Monitors
from celu.cli.run import Connect, JobFile, Listen, PartyFile, with_options
from celu.config.job import read_job
from celu.config.party import check_names, read_party


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    party: PartyFile,
    job: JobFile = Path("job.toml"),
    connect: Connect = None,
    listen: Listen = None,
) -> None:
    """Check one party's files alone, before its peers are there.

    Reads what [bold]celu run[/bold] reads: settings, keys and every row. Opens the port, builds the
    models and trains on one batch, with made-up numbers for the peers' messages. Prints what was
    checked and an estimate of the memory; nothing is sent or recorded. The exit code of an error is
    that of [bold]celu run[/bold].
    """
    contract = read_job(job)
    settings = with_options(read_party(party), connect, listen)
    check_names(contract, settings, party)
    settings.require_data()
    settings.require_model()
    console = Console()
    Monitors(settings, contract, console)  # raises for a tracker whose package is missing
    from celu.doctor.facts import Finding  # once the settings are checked: torch takes seconds
    from celu.launch.checking import check_party, has_alignment

    length = f"{contract.rounds:,} rounds" if contract.rounds else f"{contract.epochs:,} epochs"
    others = ", ".join(settings.peers) or "no peers"
    text = f"{settings.name} ({settings.role}), {length} with {others}"
    print_finding(console, Finding("settings", "ok", text))
    num_warnings = 0
    for finding in check_party(settings, contract, party.parent.resolve()):
        print_finding(console, finding)
        num_warnings += finding.level == "warn"
    if not has_alignment(settings):
        console.print(
            f"{settings.name}: align first: celu align, together with {others}; then check again"
        )
    elif num_warnings:
        warnings = "the warning" if num_warnings == 1 else f"the {num_warnings} warnings"
        console.print(f"{settings.name}: a run can start; see {warnings} above")
    else:
        console.print(f"{settings.name}: ready; next: celu doctor, together with {others}")
