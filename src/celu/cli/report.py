"""`celu report`: an HTML report of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celu.cli.console import Console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of any parties.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
) -> None:
    """Write an HTML report that compares runs: learning, time, traffic, settings, warnings.

    It is one file that a browser opens from disk, without a network. Runs may be finished,
    interrupted or still running. Like the run folders, the report holds the parties' private
    settings: check it before you share it.
    """
    from celu.page.file import write
    from celu.record.folders import read_runs
    from celu.report.render import render

    records = read_runs(runs)
    write(render(records), out)
    text = f"wrote a report of {len(records)} run(s) to {out}"
    Console().print(escape(text), soft_wrap=True)
