"""`celu simulate`: all parties of a job in this process."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from celu.cli.progress import RunProgress, summary_table
from celu.config.job import read_job
from celu.config.link import find_link
from celu.config.party import check_names, read_party
from celu.config.replay import replay_toml
from celu.errors import ConfigError
from celu.events import Warned
from celu.run_folder import RunFolder


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(
    parties: Annotated[list[Path], typer.Argument(help="The party.toml of every party.")],
    job: Annotated[Path, typer.Option(help="The contract.")] = Path("job.toml"),
    out: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/simulation"),
    link: Annotated[
        str | None,
        typer.Option(help="Tell how long it would take on a line: wan-300, wan-100, lte, lan."),
    ] = None,
    speed: Annotated[
        float, typer.Option(min=1e-3, help="With --link: how many times faster parties compute.")
    ] = 1.0,
) -> None:
    """Run all parties of a job in one process: same algorithm, same bits, no network.

    Reads the files that [bold]celu run[/bold] reads; keys and addresses are not used. With --link
    the seconds in its events are virtual: each party on a machine of its own, that line between.
    The run folder is the guest's; those of the hosts are in it, under hosts/.
    """
    line = None if link is None else find_link(link)
    contract = read_job(job)
    settings = {}
    for path in parties:
        party = read_party(path)
        check_names(contract, party, path)
        settings[party.name] = (party, path.parent.resolve())
    missing = {contract.guest, *contract.hosts} - settings.keys()
    if missing:
        raise ConfigError(
            f"expected the party.toml of every party in {job}, got none for {sorted(missing)}"
        )
    simulated = {
        "run": secrets.token_hex(16),  # whose folders belong together
        "link": None if line is None else line.model_dump(mode="json"),
        "speed": speed,
    }
    folders = {
        name: RunFolder(
            out if name == contract.guest else out / "hosts" / name,
            {
                "job": contract.model_dump(mode="json"),
                "party": party.model_dump(mode="json"),
                "simulated": simulated,
            },
        )
        for name, (party, _) in settings.items()
    }
    folder = folders[contract.guest]
    import torch

    from celu.launch import load_party, read_rows
    from celu.party import Guest, Host
    from celu.simulation import simulate as run_all

    started = time.monotonic()
    threads = settings[contract.guest][0].threads
    if threads is not None:
        torch.set_num_threads(threads)
    rows = {name: read_rows(party) for name, (party, _) in settings.items()}
    loaded = {
        name: load_party(party, contract, home, rows[name])
        for name, (party, home) in settings.items()
    }
    guest = loaded.pop(contract.guest)
    hosts = {name: party for name, party in loaded.items() if isinstance(party, Host)}
    assert isinstance(guest, Guest)
    console = Console()
    with RunProgress(console, "all parties") as progress:
        folder.add_callback(progress.event)
        for name, read in rows.items():
            for warning in read.warnings:
                folder.emit(Warned(message=f"{name}: {warning}"))
        host_callbacks = {name: [folders[name].emit] for name in hosts}
        result = run_all(
            contract,
            guest,
            hosts,
            link=line,
            speed=speed,
            callbacks=[folder.emit],
            host_callbacks=host_callbacks,
        )
    modules = {"guest.bottom": guest.bottom, "guest.top": guest.top}
    folder.save_weights(modules | {f"{name}.bottom": host.bottom for name, host in hosts.items()})
    if result.choices:
        folder.write("replay.toml", replay_toml(contract, result.choices))
    folder.finish({"status": "done", "rounds": result.rounds, "traffic": result.traffic})
    for name in hosts:
        folders[name].finish({"status": "done", "rounds": result.rounds})
    console.print(summary_table("simulation", result, time.monotonic() - started))
    if link is not None and result.evaluations:
        seconds = result.evaluations[-1]["seconds"]
        console.print(f"over {link} it would have taken {seconds:,.1f} s to its last evaluation")
    recorded = " ".join(str(folders[name].path) for name in (contract.guest, *hosts))
    console.print(f"recorded in {out}; to look at it:\n  celu report {recorded}", soft_wrap=True)
