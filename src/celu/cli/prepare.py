"""`celu prepare`: raw files into stores, which is what training reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from celu.errors import ConfigError

if TYPE_CHECKING:
    from celu.config.schema import Category
    from celu.prepare.pipeline import Progress as Listener
    from celu.prepare.pipeline import Report


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("prepare")(prepare)


def prepare(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[criteo|avazu] FILE...",
            help="Raw files of one shape: .csv, .tsv, .txt (.gz of these) or .parquet.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The store to make (store); for criteo and avazu a folder of that name."),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="What the columns are: a schema.toml.")
    ] = None,
    like: Annotated[
        Path | None, typer.Option(help="A store that has learnt them already: for new rows.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a store of that name.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="criteo, avazu: of the split; 1 if not given.")
    ] = None,
    test: Annotated[
        float | None, typer.Option(help="criteo, avazu: the share held out; 0.1 if not given.")
    ] = None,
    buckets: Annotated[
        int | None, typer.Option(min=1, help="criteo, avazu: codes a field; 100000 if not given.")
    ] = None,
    min_count: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="criteo, avazu: learn a vocabulary of values in so many training rows, rather "
            "than hash them; for up to 4 million distinct values.",
        ),
    ] = None,
) -> None:
    """Make a store from raw files: checked, coded, split into training and test rows.

    celu prepare FILE... --schema schema.toml --out STORE

    celu prepare FILE... --like STORE --out NEW    new rows, coded as an existing store's

    celu prepare criteo FILE...    the paper's data: criteo/guest/store and criteo/host/store,
    with job.toml and party.toml files
    """
    from celu.config.schema import MAX_VOCABULARY, Category
    from celu.prepare.presets import HASHED, PRESETS

    preset = files[0] if files[0] in PRESETS else None
    ways = [way for way in (preset, schema, like) if way is not None]
    if len(ways) != 1:
        raise ConfigError(
            "expected one of --schema, --like, and criteo or avazu as the first argument, "
            f"got {len(ways)}"
        )
    if preset is None and (seed, test, buckets, min_count) != (None,) * 4:
        raise ConfigError("--seed, --test, --buckets, --min-count go with criteo and avazu alone")
    if buckets is not None and min_count is not None:
        raise ConfigError("expected --buckets or --min-count, got both")
    out = out or Path(preset or "store")
    sources = [Path(file) for file in (files[1:] if preset else files)]
    if preset is not None:
        category = HASHED if buckets is None else Category(buckets=buckets)
        if min_count is not None:
            category = Category(vocabulary=MAX_VOCABULARY, min_count=min_count)
        _preset(preset, sources, out, force, seed, test, category)
    elif like is not None:
        from celu.prepare.pipeline import prepare_like

        with _watched() as progress:
            report = prepare_like(sources, like, out, progress, replace=force)
        _say([report])
    elif schema is not None:
        from celu.config.schema import read_raw_schema
        from celu.prepare.pipeline import Target
        from celu.prepare.pipeline import prepare as make

        declared = read_raw_schema(schema)
        with _watched() as progress:
            reports = make(sources, [Target(declared, out)], progress, replace=force)
        _say(reports)


def _preset(
    name: str,
    sources: list[Path],
    out: Path,
    force: bool,
    seed: int | None,
    test: float | None,
    category: Category,
) -> None:
    from celu.config.reading import validate
    from celu.config.schema import Split
    from celu.config.templates import AVAZU, CRITEO, write_settings
    from celu.prepare.pipeline import Target
    from celu.prepare.pipeline import prepare as make
    from celu.prepare.presets import PRESETS

    given = {key: value for key, value in (("seed", seed), ("test", test)) if value is not None}
    split = validate(Split, given, Path("--seed, --test"))
    parties = PRESETS[name](split, category)
    targets = [Target(declared, out / party / "store") for party, declared in parties.items()]
    with _watched() as progress:
        reports = make(sources, targets, progress, replace=force)
    write_settings(out, CRITEO if name == "criteo" else AVAZU, aligned=False)
    _say(reports)
    console = Console(soft_wrap=True)
    console.print(f"settings in {escape(str(out))}: job.toml, guest/party.toml, host/party.toml.")
    console.print("Next: celu certs, then celu align and celu run at each party.")


@contextmanager
def _watched() -> Iterator[Listener]:
    """A bar on a terminal; elsewhere a line when a phase begins."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[str, int] = {}

    def listen(phase: str, done: int, total: int) -> None:
        if phase not in tasks:
            tasks[phase] = bar.add_task(phase, total=total)
            if not console.is_terminal:
                console.print(f"{phase} ...")
        bar.update(tasks[phase], completed=done)  # type: ignore[arg-type]

    with bar:
        yield listen


def _say(reports: list[Report]) -> None:
    console = Console(soft_wrap=True)
    for report in reports:
        rows = " and ".join(f"{count:,} {part}" for part, count in report.rows.items())
        console.print(f"{escape(str(report.out))}: {rows} rows")
        for warning in report.warnings:
            console.print(f"  [yellow]warning[/yellow] {escape(warning)}")
        for column, count in report.unseen.items():
            console.print(
                f"  column {escape(repr(column))}: {count:,} rows hold values that are not in its "
                "vocabulary"
            )
