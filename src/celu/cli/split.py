"""`celu split`: split one table into several parties' tables, for experiments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from celu.cli.console import Console
from celu.config.reading import PARTY_NAME
from celu.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("split")(split)


def split(
    table: Annotated[Path, typer.Argument(help="A .csv, .tsv, .txt (.gz) or .parquet file.")],
    party: Annotated[
        list[str], typer.Option(help='NAME=COLUMN,COLUMN,... as in "bank=age,income".')
    ],
    out: Annotated[
        Path, typer.Option(help="The new folder, with one Parquet file for each party.")
    ],
    row_id: Annotated[
        str, typer.Option("--id", help='The column of row ids; "#row" for row numbers.')
    ],
    keep: Annotated[float, typer.Option(help="The share of the rows that each party gets.")] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the parties' rows and their order.")
    ] = 1,
) -> None:
    """Split one table into several parties' raw tables, for experiments.

    Each party gets the ids and its columns, with the rows in its own random order. With --keep
    below 1 each party lacks different rows, so that there is something to align.
    """
    from celu.prepare.split import split as split_table

    parties = dict(map(_party, party))
    if len(parties) < len(party):
        raise ConfigError("--party: expected each name once, got one twice")
    counts = split_table(table, row_id, parties, out, keep=keep, seed=seed)
    console = Console()
    for name, count in counts.items():
        console.echo(f"{out / name}.parquet: {count:,} rows")


def _party(text: str) -> tuple[str, list[str]]:
    name, equals, columns = text.partition("=")
    if not equals or not re.match(PARTY_NAME, name):
        raise ConfigError(
            "--party: expected NAME=COLUMN,... with a name of lowercase letters, digits, hyphens, "
            f"got {text!r}"
        )
    return name, [column.strip() for column in columns.split(",") if column.strip()]
