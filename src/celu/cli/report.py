"""`celu report`: a page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, of any parties.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
) -> None:
    """Write a page about runs, side by side: learning, time, traffic, settings, what went wrong.

    It is one file that a browser opens from disk, with no network. Runs may be done, interrupted
    or going on. The page holds the parties' private settings, as the folders do: look through it
    before you pass it on.
    """
    from celu.record.folders import read_runs
    from celu.report.render import render, write

    records = read_runs(runs)
    write(render(records), out)
    Console().print(f"{len(records)} run(s) in {out}", soft_wrap=True)
