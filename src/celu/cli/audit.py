"""`celu audit`: what a run leaked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celu.cli.console import Console, narrow_table
from celu.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit")(audit)


def audit(run: Annotated[Path, typer.Argument(help="Your run folder.")]) -> None:
    """Show what a run leaked, as far as the attacks of its audit found.

    A run is audited if party.toml has [bold]\\[audit][/bold]. At the guest: what each host can
    learn of labels from dZ. At a host: what the guest can learn of its columns from Z. The figures
    are in audit.json of the run folder; nothing of them is sent to a peer.
    """
    from celu.audit.result import read_audit
    from celu.audit.tables import notes_of, tables_of

    found = read_audit(run)
    if found is None:
        raise ConfigError(
            f"{run}: the run has no audit; add [audit] to party.toml before a run, and wait for "
            "its end"
        )
    console = Console()
    for one in tables_of(found):
        table = narrow_table(escape(one.title), blank_above=False)
        for number, heading in enumerate(one.headings):
            table.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
        for row in one.rows:
            table.add_row(*map(escape, row))
        console.print(table)
        for note in one.notes:
            console.echo(note)
    for note in notes_of(found):
        console.echo(note)
