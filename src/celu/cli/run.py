"""`celu run`: train one party over the network."""

from __future__ import annotations

import shlex
import socket
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from celu import errors
from celu.cli.console import Console
from celu.cli.interrupt import InterruptHandler
from celu.cli.monitors import Monitors
from celu.cli.progress import RunProgress, summary_table
from celu.config.job import read_job
from celu.config.link import find_link
from celu.config.party import PartySettings, check_names, read_party
from celu.config.reading import validate
from celu.errors import CeluError, ConfigError, RankLost
from celu.launch.folder import open_run_folder
from celu.ranks.environment import num_restarts, own_rank
from celu.run_folder import read_summary


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


PartyFile = Annotated[Path, typer.Argument(help="Your private settings.")]
JobFile = Annotated[Path, typer.Option(help="The contract, the same at all parties.")]
Connect = Annotated[
    list[str] | None,
    typer.Option(help="NAME=HOST:PORT of a peer that listens; overrides party.toml."),
]
Listen = Annotated[str | None, typer.Option(help="HOST:PORT to listen on; overrides party.toml.")]


def run(
    party: PartyFile,
    job: JobFile = Path("job.toml"),
    connect: Connect = None,
    listen: Listen = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; overrides party.toml.")] = None,
    link: Annotated[
        str | None,
        typer.Option(
            help="Emulate a link for what we send: wan-300, wan-100, lte, lan; overrides "
            "party.toml."
        ),
    ] = None,
    restart_from: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Resume from this round and train later ones again, although their checkpoints "
            "exist; 0: from the start. All parties must pass it, once.",
        ),
    ] = None,
    more: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Continue a finished or stopped run by this many rounds. All parties must pass "
            "it, once.",
        ),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the run in a browser on this machine.")
    ] = False,
    dashboard_port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of --dashboard; 0: any free port.")
    ] = 0,
) -> None:
    """Train one party of a job over the network until the job is done.

    Each company runs this with its own party.toml and the same job.toml. Either side may listen;
    it prints the command that the other side runs. Ctrl-C stops at the next checkpoint, a second
    Ctrl-C at once. Run the same command again to resume from the last checkpoint. To use several
    processes or machines for one party: torchrun --nproc-per-node N --max-restarts 3 -m celu run.
    """
    contract = read_job(job)
    settings = with_options(read_party(party), connect, listen, out)
    if link is not None:
        settings = settings.model_copy(update={"link": find_link(link)})
    check_names(contract, settings, party)
    settings.require_data()
    settings.require_model()
    if num_restarts() > 0:
        _check_earlier_attempt(settings.run_dir)
    if own_rank() > 0:
        from celu.launch.ranks import follow_party  # like `run_party` below

        source = party.parent.resolve()
        with InterruptHandler(None, settings.name) as interrupt:
            follow_party(settings, contract, source, more or 0, interrupt.join, interrupt.event)
        return
    console = Console()
    monitors = Monitors(settings, contract, console, port=dashboard_port if dashboard else None)
    folder = open_run_folder(settings, contract, keep_done=restart_from is None and more is None)
    where = escape(str(settings.run_dir))
    if folder.is_done:
        console.print(
            f"{where}: this run is done; it takes part once more, for a peer that is not",
            soft_wrap=True,
        )
    if settings.insecure:
        console.print(
            "[bold red]insecure = true[/bold red]: messages are neither encrypted nor authenticated"
        )
    agreed = [job_option(job)]  # and what all parties must pass
    if restart_from is not None:
        agreed.append(f"--restart-from {restart_from}")
    if more is not None:
        agreed.append(f"--more {more}")
    started = time.monotonic()
    from celu.launch.training import run_party  # once the settings are checked: torch takes seconds

    with (
        monitors.attached_to(folder),
        RunProgress(
            console, settings.name, awaited(settings), evaluates=settings.role == "guest"
        ) as progress,
        InterruptHandler(console, settings.name) as interrupt,
    ):
        folder.add_callback(progress.event)
        folder.add_callback(interrupt.event)
        result = run_party(
            settings,
            contract,
            party.parent.resolve(),
            folder,
            lambda port: console.print(
                escape(invitation(settings, port, "run", " ".join(agreed))), soft_wrap=True
            ),
            restart_from,
            more or 0,
            interrupt.join,
        )
    took_s = time.monotonic() - started
    if result is None:
        rounds = read_summary(settings.run_dir).get("rounds")
        console.print(
            f"{settings.name}: done before, after {rounds} rounds; no peer came within "
            f"{settings.connect_s:g} s (connect_s), so nothing was changed"
        )
    else:
        console.print(summary_table(settings.name, result, took_s, progress.training_s))
    console.print(f"recorded in {where}; to view it:\n  celu report {where}", soft_wrap=True)


def _check_earlier_attempt(run_dir: Path) -> None:
    """Raise the error that ended the run before torchrun restarted it, if a restart cannot help.

    It does if a rank was lost or killed. An error of another kind has been reported to the peers,
    which have stopped; a run that was interrupted is not to continue.
    """
    summary = read_summary(run_dir)
    status, message = str(summary.get("status", "done")), str(summary.get("message", ""))
    if status in ("done", RankLost.__name__):
        return
    if status == KeyboardInterrupt.__name__:
        raise KeyboardInterrupt
    kind = getattr(errors, status, None)
    if not (isinstance(kind, type) and issubclass(kind, CeluError)):
        kind, message = CeluError, f"{status}; its output says where"
    raise kind(f"before torchrun restarted it, the run ended with: {message}")


def awaited(settings: PartySettings) -> str:
    """Whom a party waits for, where, and for how long."""
    peers = [
        name if peer.connect is None else f"{name} at {peer.connect}"
        for name, peer in settings.peers.items()
    ]
    return f"{', '.join(peers)}, up to {settings.connect_s:g} s" if peers else ""


def with_options(
    settings: PartySettings,
    connect: list[str] | None,
    listen: str | None,
    out: Path | None = None,
) -> PartySettings:
    """The settings with the command line's options applied, validated again."""
    values = settings.model_dump()
    for given in connect or []:
        name, equals, address = given.partition("=")
        if not equals or name not in values["peers"]:
            raise ConfigError(
                f"--connect: expected NAME=HOST:PORT with NAME among "
                f"{', '.join(values['peers']) or 'no peers'}, got {given!r}"
            )
        values["peers"][name]["connect"] = address
    if listen is not None:
        values["listen"] = listen
    if out is not None:
        values["run_dir"] = out
    return validate(PartySettings, values, Path("the command line"))


def job_option(job: Path) -> str:
    """The option with which the other side names the contract: as it was given here."""
    return f"--job {shlex.quote(str(job))}"


def invitation(settings: PartySettings, port: int, command: str, options: str) -> str:
    """The text with which a listening party's operator invites the other side."""
    host = (settings.listen or "").rsplit(":", 1)[0]
    if host in ("0.0.0.0", "[::]", "::"):  # noqa: S104 - compared with, not bound to
        host = socket.getfqdn()
    where = f"{host}:{port}"
    lines = [f"{settings.name} listens on port {port}. The other side runs:"]
    if settings.gateway:
        where = "GATEWAY:PORT"
        lines = [
            f"{settings.name} listens on port {port} for its gateway. The other side sets "
            f"peers.{settings.name}.gateway and runs:"
        ]
    for name, peer in settings.peers.items():
        if peer.connect is None:
            lines.append(
                f"  {name}:  celu {command} party.toml {options} --connect {settings.name}={where}"
            )
    return "\n".join(lines)
