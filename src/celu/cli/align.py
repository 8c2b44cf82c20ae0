"""`celu align`: find the rows that all parties have, without revealing the others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from celu.cli.console import Console
from celu.cli.counting import CountProgress
from celu.cli.progress import link_message, megabytes
from celu.cli.run import (
    Connect,
    JobFile,
    Listen,
    PartyFile,
    awaited,
    invitation,
    job_option,
    with_options,
)
from celu.config.job import read_job
from celu.config.party import DataSettings, PartySettings, check_names, read_party
from celu.errors import ConfigError
from celu.events import AlignmentProgress, Event

if TYPE_CHECKING:
    from celu.transport.message import TrafficBothWays


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("align")(align)


def align(
    party: PartyFile,
    job: JobFile = Path("job.toml"),
    connect: Connect = None,
    listen: Listen = None,
    store: Annotated[
        Path | None, typer.Option(help="Align this store instead, such as rows to predict.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the alignment; overrides party.toml.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="Align one shard of the rows, such as 3/64: 0/64 to 63/64.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge all shards into the alignment; needs no peer.")
    ] = False,
) -> None:
    """Find the rows that all parties have: private set intersection.

    Each company runs this before [bold]celu run[/bold], with the same two files. Each learns which
    of its own ids the others have too, and how many rows the others have in total; nothing about
    the others' remaining ids. If it is interrupted, it resumes when all parties start it again.
    The group, P-256 or X25519, is a setting of the contract.
    """
    contract = read_job(job)
    settings = _with_store(with_options(read_party(party), connect, listen), store, out)
    check_names(contract, settings, party)
    console = Console()
    started = time.monotonic()
    if merge and shard is not None:
        raise ConfigError("--merge: expected no --shard: all shards are merged")
    # Once settings are checked: torch takes seconds.
    from celu.data.shards import Shard
    from celu.launch.aligning import align_party, align_shard, merge_party

    part_of_rows = None if shard is None else Shard.parse(shard)
    traffic: dict[str, TrafficBothWays] = {}
    padding: dict[str, int] = {}
    if merge:
        alignment, padding = merge_party(settings)
    else:
        options = [job_option(job)]
        if store is not None:
            options.append("--store STORE")
        if out is not None:
            options.append("--out ALIGNMENT")
        if shard is not None:
            options.append(f"--shard {shard}")

        def listening(port: int) -> None:
            text = invitation(settings, port, "align", " ".join(options))
            console.print(escape(text), soft_wrap=True)

        with CountProgress(console, settings.name, "ids", awaited(settings)) as bar:

            def show(event: Event) -> None:
                if (text := link_message(event)) is not None:
                    bar.print(text)
                elif isinstance(event, AlignmentProgress):
                    bar.show(event.done, event.total)

            if part_of_rows is not None:
                done, _ = align_shard(settings, contract, part_of_rows, listening, show)
                console.print(
                    f"{settings.name}: shard {part_of_rows} is aligned, "
                    f"{sum(done.rows.values()):,} rows; then merge all shards with --merge"
                )
                return
            alignment, traffic = align_party(settings, contract, listening, show)
    facts = alignment.facts
    table = Table(title=f"{settings.name}: aligned", show_header=False)
    table.add_row("rows here", f"{sum(facts.store_rows.values()):,}")
    for name, rows in facts.peers.items():
        table.add_row(f"rows at {name}", f"{rows:,}, {facts.common[name]:,} in common")
        dummies = f", and {padding[name]:,} as dummies" if name in padding else ""
        table.add_row(f"ids of {name} answered", f"{facts.answered[name]:,}{dummies}")
    held_out = sum(facts.rows.values()) - facts.rows["train"]
    table.add_row("rows to train on", f"{facts.rows['train']:,}, {held_out:,} held out")
    for name, link in traffic.items():
        sent, received = link.sent.total_bytes, link.received.total_bytes
        crossed = f"{megabytes(sent)} sent, {megabytes(received)} received"
        table.add_row(f"link to {name}", crossed)
    table.add_row("time", f"{time.monotonic() - started:,.1f} s")
    console.print(table)
    console.print(f"written to {escape(str(alignment.path))}", soft_wrap=True)


def _with_store(settings: PartySettings, store: Path | None, out: Path | None) -> PartySettings:
    """The settings with another store and another folder for the alignment."""
    if store is None and out is None:
        return settings
    if out is None:
        raise ConfigError(
            "--store: expected --out too, or the alignment of the training rows would be replaced"
        )
    data = DataSettings(store=store or settings.require_data().store, alignment=out)
    return settings.model_copy(update={"data": data})
