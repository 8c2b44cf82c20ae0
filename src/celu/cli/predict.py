"""`celu predict`: score rows with a trained model, across parties."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from celu.cli.console import Console
from celu.cli.counting import CountProgress
from celu.cli.progress import link_message, megabytes
from celu.cli.run import Connect, Listen, awaited, invitation, with_options
from celu.config.party import PartySettings, check_names, read_party
from celu.config.serving import Serving, read_serving
from celu.errors import ConfigError
from celu.events import Event, Restarted, ScoringProgress
from celu.launch.predict_files import PredictParty

if TYPE_CHECKING:
    from celu.launch.predicting import PredictSummary


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict")(predict)


ServingFile = Annotated[Path, typer.Option(help="The serving contract, the same at all parties.")]
RowStore = Annotated[
    Path | None, typer.Option(help="The rows to score; by default the store of party.toml.")
]
RowAlignment = Annotated[
    Path | None, typer.Option(help="The alignment of the store, which celu align wrote.")
]
RowsAligned = Annotated[
    bool, typer.Option("--aligned", help="The stores of all parties hold the same rows in order.")
]


def predict(
    parties: Annotated[
        list[Path],
        typer.Argument(help="Your private settings; or those of all parties, in one process."),
    ],
    model: Annotated[Path, typer.Option(help="The folder that celu export wrote.")],
    serving: ServingFile = Path("serving.toml"),
    store: RowStore = None,
    alignment: RowAlignment = None,
    aligned: RowsAligned = False,
    out: Annotated[
        Path | None, typer.Option(help="The scores file (Parquet), at the guest.")
    ] = None,
    fallback: Annotated[
        Literal["mean", "refuse"],
        typer.Option(help="For rows that a host lacks: its mean Z, or no score."),
    ] = "mean",
    force: Annotated[bool, typer.Option("--force", help="Replace the scores file.")] = False,
    connect: Connect = None,
    listen: Listen = None,
) -> None:
    """Score the rows of a store with a trained model; the guest writes the scores.

    Each company runs this with its own party.toml and its own part of the model. If it is
    interrupted, it resumes when all parties start it again. With several party.toml files, all
    parties run in this process, and the paths of --model, --store and --alignment are relative to
    each party.toml.
    """
    contract = read_serving(serving)
    console = Console()
    together = len(parties) > 1
    if together and (connect or listen):
        raise ConfigError("--connect, --listen: expected none with all parties in one process")
    found: dict[str, PredictParty] = {}
    for path in parties:
        settings = read_party(path)
        if not together:
            settings = with_options(settings, connect, listen)
        check_names(contract, settings, path)
        folder = path.parent if together else Path()
        found[settings.name] = _party(
            settings, path, folder / model, _at(folder, store), _at(folder, alignment), aligned, out
        )
    _check_out(contract, found, out, force)
    started = time.monotonic()
    from celu.launch.predicting import predict_parties, predict_party  # torch takes seconds

    if together:
        with CountProgress(console, "all parties", "rows") as bar:
            summary = predict_parties(found, contract, fallback, _Scoring(bar).event)
        _show(console, "all parties", summary, time.monotonic() - started, out)
        return
    (party,) = found.values()
    settings = party.settings
    if settings.insecure:
        console.print(
            "[bold red]insecure = true[/bold red]: messages are neither encrypted nor authenticated"
        )
    options = agreed_options(serving, "--model MODEL", store, alignment, aligned)
    with CountProgress(console, settings.name, "rows", awaited(settings)) as bar:
        summary = predict_party(
            party,
            contract,
            fallback,
            lambda port: console.print(
                escape(invitation(settings, port, "predict", options)), soft_wrap=True
            ),
            _Scoring(bar).event,
        )
    _show(console, settings.name, summary, time.monotonic() - started, party.out)


def _at(folder: Path, path: Path | None) -> Path | None:
    return None if path is None else folder / path


def rows_to_use(
    settings: PartySettings, store: Path | None, alignment: Path | None, aligned: bool
) -> tuple[Path, Path | None]:
    """The store and its alignment, from the options or party.toml; raises ConfigError."""
    if alignment is not None and aligned:
        raise ConfigError("--alignment, --aligned: expected one of them, got both")
    if store is None:
        data = settings.require_data()
        store = data.store
        if alignment is None and not aligned:
            alignment = data.alignment
    elif alignment is None and not aligned:
        raise ConfigError(
            '--alignment: expected the alignment of the store, which "celu align --store" writes, '
            "or --aligned where the stores of all parties hold the same rows in the same order"
        )
    return store, alignment


def agreed_options(
    serving: Path, model: str, store: Path | None, alignment: Path | None, aligned: bool
) -> str:
    """The options of the other side: as given here, with names in place of our own folders."""
    options = [f"--serving {shlex.quote(str(serving))}", model]
    if store is not None:
        options.append("--store STORE")
    if alignment is not None:
        options.append("--alignment ALIGNMENT")
    if aligned:
        options.append("--aligned")
    return " ".join(options)


def _party(
    settings: PartySettings,
    path: Path,
    model: Path,
    store: Path | None,
    alignment: Path | None,
    aligned: bool,
    out: Path | None,
) -> PredictParty:
    """A party with its files; raises ConfigError for options that do not fit together."""
    store, alignment = rows_to_use(settings, store, alignment, aligned)
    is_guest = settings.role == "guest"
    return PredictParty(
        settings, path.parent.resolve(), model, store, alignment, out if is_guest else None
    )


def _check_out(
    serving: Serving, found: dict[str, PredictParty], out: Path | None, force: bool
) -> None:
    if serving.guest not in found:
        if out is not None:
            raise ConfigError("--out: expected it at the guest only, which gets the scores")
        return
    if out is None:
        raise ConfigError("--out: expected the scores file to write, got none")
    if out.is_dir() or not out.name:
        raise ConfigError(f"{out}: expected the name of a file, got a folder")
    if out.exists() and not force:
        raise ConfigError(f"{out}: already exists; to replace it, use --force")


def _show(
    console: Console, name: str, summary: PredictSummary, seconds: float, out: Path | None
) -> None:
    table = Table(title=f"{name}: predicted", show_header=False)
    table.add_row("model", summary.model)
    table.add_row("rows scored" if out else "rows sent", f"{summary.rows:,}")
    if out is not None:
        table.add_row("of these with the fallback", f"{summary.fallback:,}")
    if summary.left_out and out is not None:
        table.add_row("rows left out, not aligned", f"{summary.left_out:,}")
    for peer, link in summary.traffic.items():
        sent, received = link.sent.total_bytes, link.received.total_bytes
        crossed = f"{megabytes(sent)} sent, {megabytes(received)} received"
        table.add_row(f"link to {peer}", crossed)
    rate = summary.rows / max(summary.seconds, 1e-9)
    table.add_row("time", f"{seconds:,.1f} s")
    table.add_row("rows per second since the peers connected", f"{rate:,.0f}")
    console.print(table)
    if out is not None:
        console.print(f"written to {escape(str(out))}", soft_wrap=True)


class _Scoring:
    """A callback that shows how many rows are scored, and how many in a second."""

    def __init__(self, bar: CountProgress) -> None:
        self._bar = bar
        self._first: tuple[float, int] | None = None

    def event(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Restarted):
            self._bar.print(f"{escape(event.message)}; starting over from the last part")
        elif (message := link_message(event)) is not None:
            self._bar.print(message)
        elif isinstance(event, ScoringProgress):
            self._bar.show(event.done, event.total, self._rate(event.done))

    def _rate(self, done: int) -> str:
        now = time.monotonic()
        if self._first is None or done < self._first[1]:
            self._first = (now, done)
            return ""
        started, before = self._first
        return f"{(done - before) / max(now - started, 1e-9):,.0f} rows/s"
