"""`celu dashboard`: runs as they go on, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from celu.errors import CeluError

_LOOK_S = 1.0  # how soon an end that nobody asked for is noticed


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dashboard")(dashboard)


def dashboard(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of your own.")],
    host: Annotated[str, typer.Option(help="The address to serve at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 is any.")] = 0,
    expose: Annotated[
        bool,
        typer.Option("--expose", help="Allow a host that other machines reach; there is no login."),
    ] = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Also answer /metrics, for Prometheus.")
    ] = False,
) -> None:
    """Show runs as they go on, side by side, in a browser on this machine.

    It reads run folders, of runs that are going on, done or interrupted, and takes no commands.
    Warnings say what is amiss and what to do about it. Ctrl-C ends it, and never a run.
    """
    from celu.dashboard.server import Dashboard

    console = Console()
    served = Dashboard(runs, host=host, port=port, expose=expose, metrics=metrics)
    if expose:
        console.print(
            "[bold red]--expose[/bold red]: whoever can reach this address sees these runs; "
            "there is no login, and nothing is encrypted"
        )
    with served:
        console.print(f"{len(runs)} run(s) at {served.url} until Ctrl-C", soft_wrap=True)
        try:
            while not served.wait(_LOOK_S):
                pass
        except KeyboardInterrupt:
            console.print("ended")
            return
    raise CeluError("dashboard: the server ended by itself; what it said is above")
