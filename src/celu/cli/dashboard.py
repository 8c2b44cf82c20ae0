"""`celu dashboard`: live runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from celu.cli.console import Console
from celu.errors import CeluError

_POLL_S = 1.0  # how soon a server that died is noticed


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dashboard")(dashboard)


def dashboard(
    runs: Annotated[list[Path], typer.Argument(help="Your own run folders.")],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any.")] = 0,
    expose: Annotated[
        bool,
        typer.Option(
            "--expose", help="Allow a host that other machines can reach; there is no login."
        ),
    ] = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Also serve /metrics for Prometheus.")
    ] = False,
) -> None:
    """Show live runs side by side, in a browser on this machine.

    It reads the folders of running, finished or interrupted runs, and cannot change a run. Its
    warnings say what is wrong and what to do. Ctrl-C stops the dashboard, never a run.
    """
    from celu.dashboard.server import Dashboard

    console = Console()
    server = Dashboard(runs, host=host, port=port, expose=expose, metrics=metrics)
    if expose:
        console.print(
            "[bold red]--expose[/bold red]: anyone who can reach this address can see these runs; "
            "there is no login and no encryption"
        )
    with server:
        console.print(
            f"dashboard of {len(runs)} run(s) at {server.url}; Ctrl-C stops it", soft_wrap=True
        )
        try:
            while not server.wait(_POLL_S):
                pass
        except KeyboardInterrupt:
            console.print("stopped")
            return
    raise CeluError("dashboard: the server stopped unexpectedly; see its output above")
