"""`celu certs`: make a certificate authority, or a party's certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from celu.certs import make_authority, make_party
from celu.cli.console import Console

_Folder = Annotated[Path, typer.Option("--dir", help="Folder of the certificates and keys.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    certs = typer.Typer(
        help="Make keys and certificates: first [bold]celu certs ca[/bold], then "
        "[bold]celu certs party NAME[/bold]. Then send ca.pem, and nothing else, to the other "
        "company.",
        no_args_is_help=True,
    )
    certs.command("ca")(ca)
    certs.command("party")(party)
    app.add_typer(certs, name="certs")


def ca(
    folder: _Folder = Path("certs"),
    name: Annotated[str, typer.Option(help="Your company's name in the certificates.")] = "celu",
    days: Annotated[int, typer.Option(min=1, help="Days of validity.")] = 3650,
) -> None:
    """Make your company's certificate authority: ca.pem (public) and ca.key (secret)."""
    path = make_authority(folder, name, days)
    console = Console()
    console.echo(f"{path}: send this file to the other company, which sets it as ca of this peer.")
    console.echo(f"{path.with_suffix('.key')}: keep this one secret.")


def party(
    name: Annotated[str, typer.Argument(help="The party's name, as in the contract.")],
    folder: _Folder = Path("certs"),
    days: Annotated[int, typer.Option(min=1, help="Days of validity.")] = 365,
) -> None:
    """Make a party's certificate and key, signed by the authority in --dir."""
    path = make_party(folder, name, days)
    console = Console()
    console.echo("In your party.toml:\n")
    console.echo(
        f'[keys]\ncertificate = "{path.resolve()}"\nkey = "{path.with_suffix(".key").resolve()}"'
    )
