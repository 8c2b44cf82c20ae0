"""`celu split`: one table cut into several parties' tables, to try things out alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

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
    out: Annotated[Path, typer.Option(help="The folder to make, one Parquet file a party.")],
    row_id: Annotated[
        str, typer.Option("--id", help='The column of ids; "#row" for the number of the row.')
    ],
    keep: Annotated[float, typer.Option(help="The share of all rows that each party has.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of who has which rows, in what order.")] = 1,
) -> None:
    """Cut one table into several parties' raw tables, for experiments.

    Each party gets the ids and its columns in a random order of its own; with --keep below 1 each
    lacks other rows, so that there is something to align.
    """
    from celu.prepare.split import split as cut

    parties = dict(map(_party, party))
    if len(parties) < len(party):
        raise ConfigError("--party: expected different names, got one twice")
    counts = cut(table, row_id, parties, out, keep=keep, seed=seed)
    for name, count in counts.items():
        typer.echo(f"{out / name}.parquet: {count:,} rows")


def _party(text: str) -> tuple[str, list[str]]:
    name, equals, columns = text.partition("=")
    if not equals or not re.match(PARTY_NAME, name):
        raise ConfigError(
            "--party: expected NAME=COLUMN,... with a name of small letters, digits and hyphens, "
            f"got {text!r}"
        )
    return name, [column.strip() for column in columns.split(",") if column.strip()]
