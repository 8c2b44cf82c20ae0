"""`celu data`: write a built-in data set with settings files that run without edits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from celu.cli.console import Console
from celu.config.templates import AVAZU, CRITEO, FLIGHTS, write_settings

_Folder = Annotated[Path, typer.Argument(help="The folder to write to.")]
_Rows = Annotated[int, typer.Option(min=10, help="All rows, held-out rows included.")]
_MaxCodes = Annotated[
    int | None,
    typer.Option(help="Maximum number of ids of a field; by default one for every 100 rows."),
]
_Validation = Annotated[
    float, typer.Option(min=0, max=0.5, help="Share of validation rows, to choose the best model.")
]
_Seed = Annotated[int, typer.Option(min=0, help="Seed of the split, or of the synthetic rows.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    data = typer.Typer(
        help="Write a built-in data set for two parties, with job.toml and party.toml files.",
        no_args_is_help=True,
    )
    data.command("flights")(flights)
    data.command("criteo")(criteo)
    data.command("avazu")(avazu)
    app.add_typer(data, name="data")


def flights(
    folder: _Folder = Path("flights"), seed: _Seed = 1, validation: _Validation = 0.0
) -> None:
    """Real flights of 2013: an airline (guest, has the delays) and a weather service (host)."""
    from celu.data.flights import write_flights

    write_flights(folder, seed=seed, validation_fraction=validation)
    write_settings(folder, FLIGHTS)
    _print_next_step(folder)


def criteo(
    folder: _Folder = Path("criteo"),
    rows: _Rows = 1_000_000,
    max_codes: _MaxCodes = None,
    seed: _Seed = 1,
    validation: _Validation = 0.0,
) -> None:
    """Synthetic clicks in the shape of Criteo: 13 numeric fields (guest), 26 id fields (host)."""
    _write_clicks(folder, "criteo", rows, max_codes, seed, validation)
    write_settings(folder, CRITEO)
    _print_next_step(folder)


def avazu(
    folder: _Folder = Path("avazu"),
    rows: _Rows = 1_000_000,
    max_codes: _MaxCodes = None,
    seed: _Seed = 1,
    validation: _Validation = 0.0,
) -> None:
    """Synthetic clicks in the shape of Avazu: 8 id fields (guest), 14 id fields (host)."""
    _write_clicks(folder, "avazu", rows, max_codes, seed, validation)
    write_settings(folder, AVAZU)
    _print_next_step(folder)


def _write_clicks(
    folder: Path,
    shape: Literal["criteo", "avazu"],
    rows: int,
    max_codes: int | None,
    seed: int,
    validation: float,
) -> None:
    from celu.data.clicks import write_clicks

    # A model memorises ids that occur in few rows, and does not generalise.
    codes = max_codes or min(max(rows // 100, 100), 1_000_000)
    write_clicks(
        folder, shape, rows=rows, seed=seed, max_codes=codes, validation_fraction=validation
    )


def _print_next_step(folder: Path) -> None:
    console = Console()
    console.echo(f"written to {folder}. Try it in one process:")
    parties = " ".join(str(p) for p in sorted(folder.glob("*/party.toml")))
    console.echo(f"  celu simulate {parties} --job {folder / 'job.toml'} --out {folder / 'run'}")
