"""`celu serve`: score single rows on request, across parties."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from celu.cli.console import Console
from celu.cli.predict import (
    RowAlignment,
    RowsAligned,
    RowStore,
    ServingFile,
    agreed_options,
    rows_to_use,
)
from celu.cli.run import Connect, Listen, PartyFile, invitation, with_options
from celu.config.party import check_names, read_party
from celu.config.serving import read_serving


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    party: PartyFile,
    models: Annotated[
        Path, typer.Option(help="A folder of models, each written by celu export; it is watched.")
    ],
    serving: ServingFile = Path("serving.toml"),
    store: RowStore = None,
    alignment: RowAlignment = None,
    aligned: RowsAligned = False,
    connect: Connect = None,
    listen: Listen = None,
) -> None:
    """Score rows on request: the guest answers clients over HTTP, hosts answer the guest.

    Each company runs this with its own party.toml, whose section [bold]\\[serve][/bold] has its
    private settings. The guest speaks the Open Inference Protocol, version 2. It serves the newest
    model that all parties hold, and switches to a new one without interrupting requests. If a host
    is down or slow, the answer comes from the fallback and says so. Ctrl-C or SIGTERM ends it after
    the requests in progress.
    """
    contract = read_serving(serving)
    settings = with_options(read_party(party), connect, listen)
    check_names(contract, settings, party)
    rows, its_alignment = rows_to_use(settings, store, alignment, aligned)
    console = Console()
    if settings.insecure:
        console.print(
            "[bold red]insecure = true[/bold red]: messages are neither encrypted nor authenticated"
        )
    from celu.launch.serving import ServeParty, serve_guest, serve_host  # torch takes seconds

    options = agreed_options(serving, "--models MODELS", store, alignment, aligned)
    stop = threading.Event()
    served = ServeParty(
        settings,
        contract,
        party.parent.resolve(),
        models,
        rows,
        its_alignment,
        lambda text: console.echo(f"{settings.name}: {text}"),
        lambda port: console.print(
            escape(invitation(settings, port, "serve", options)), soft_wrap=True
        ),
    )
    signals = (signal.SIGINT, signal.SIGTERM)
    previous: list[Any] = [signal.signal(number, lambda *_: stop.set()) for number in signals]
    try:
        (serve_guest if settings.role == "guest" else serve_host)(served, stop)
    finally:
        for number, handler in zip(signals, previous, strict=True):
            signal.signal(number, handler)
    console.echo(f"{settings.name}: stopped")
