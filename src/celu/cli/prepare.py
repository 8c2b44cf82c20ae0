"""`celu prepare`: convert raw files to stores, which training reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from celu.cli.console import Console
from celu.errors import ConfigError

if TYPE_CHECKING:
    from celu.config.columns import Category
    from celu.prepare.pipeline import Progress as ProgressCallback
    from celu.prepare.pipeline import Report


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("prepare")(prepare)


def prepare(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[criteo|avazu] FILE...",
            help="Raw files with the same columns: .csv, .tsv, .txt (.gz of these) or .parquet.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The new store, by default store; for criteo and avazu a folder of that name."
        ),
    ] = None,
    schema: Annotated[Path | None, typer.Option(help="The columns: a schema.toml.")] = None,
    like: Annotated[
        Path | None, typer.Option(help="An existing store: encode new rows in the same way.")
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(help="Write a new schema.toml instead, guessed from the first rows."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="With --draft: the column that a guest predicts.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing store.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="criteo, avazu: seed of the split; by default 1.")
    ] = None,
    test: Annotated[
        float | None, typer.Option(help="criteo, avazu: share of test rows; by default 0.1.")
    ] = None,
    validation: Annotated[
        float | None, typer.Option(help="criteo, avazu: share of validation rows; by default 0.")
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(min=1, help="criteo, avazu: hash buckets of a field; by default 100000."),
    ] = None,
    min_count: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="criteo, avazu: instead of hashing, fit a vocabulary of the values that occur in "
            "at least this many training rows; for up to 4 million distinct values.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads; by default one for each core, up to 8. The files do not depend on it.",
        ),
    ] = None,
) -> None:
    """Make a store from raw files: check, encode, split into training and held-out rows.

    celu prepare FILE --draft schema.toml    guess the columns of a raw file, to check and edit

    celu prepare FILE... --schema schema.toml --out STORE

    celu prepare FILE... --like STORE --out NEW    new rows, encoded like an existing store

    celu prepare criteo FILE...    the paper's data: criteo/guest/store and criteo/host/store,
    with job.toml and party.toml files
    """
    from celu.config.columns import MAX_VOCABULARY, Category
    from celu.prepare.presets import HASHED, PRESETS

    preset = files[0] if files[0] in PRESETS else None
    schemas = [given for given in (preset, schema, like, draft) if given is not None]
    if len(schemas) != 1:
        raise ConfigError(
            "expected one of --draft, --schema, --like, and criteo or avazu as the first argument, "
            f"got {len(schemas)}"
        )
    if draft is not None:
        if out is not None or force:
            raise ConfigError("--draft makes no store: expected neither --out nor --force")
        _write_draft(files, draft, label)
        return
    if label is not None:
        raise ConfigError("--label is for --draft; a schema.toml names the label itself")
    if preset is None and (seed, test, validation, buckets, min_count) != (None,) * 5:
        raise ConfigError(
            "--seed, --test, --validation, --buckets and --min-count are for criteo and avazu only"
        )
    if buckets is not None and min_count is not None:
        raise ConfigError("expected --buckets or --min-count, got both")
    out = out or Path(preset or "store")
    sources = [Path(file) for file in (files[1:] if preset else files)]
    if preset is not None:
        category = HASHED if buckets is None else Category(buckets=buckets)
        if min_count is not None:
            category = Category(vocabulary=MAX_VOCABULARY, min_count=min_count)
        shares = {"seed": seed, "test": test, "validation": validation}
        given = {key: value for key, value in shares.items() if value is not None}
        _prepare_preset(preset, sources, out, force, given, category, threads)
    elif like is not None:
        from celu.prepare.pipeline import prepare_like

        with _show_progress() as progress:
            report = prepare_like(sources, like, out, progress, replace=force, threads=threads)
        _print_reports([report])
    elif schema is not None:
        from celu.config.schema import read_raw_schema
        from celu.prepare.pipeline import Target
        from celu.prepare.pipeline import prepare as prepare_stores

        with _show_progress() as progress:
            targets = [Target(read_raw_schema(schema), out)]
            reports = prepare_stores(sources, targets, progress, replace=force, threads=threads)
        _print_reports(reports)


def _write_draft(files: list[str], path: Path, label: str | None) -> None:
    from celu.prepare.draft import write_draft

    if len(files) != 1:
        raise ConfigError(f"--draft: expected one file, the first of them, got {len(files)}")
    made = write_draft(Path(files[0]), path, label=label)
    console = Console(soft_wrap=True)
    found = ", ".join(f"{table}: {count}" for table, count in made.counts.items() if count)
    left_out = f"; left out: {made.left_out}" if made.left_out else ""
    row_id = "id not found" if made.id is None else f"id {made.id}"
    console.print(escape(f"{path}: {row_id}; {found or 'no features'}{left_out}"))
    first = "Name the id in it, check" if made.id is None else "Check"
    console.print(
        escape(f"{first} every line, then: celu prepare {files[0]} --schema {path} --out store")
    )


def _prepare_preset(
    name: str,
    sources: list[Path],
    out: Path,
    force: bool,
    given: dict[str, float],
    category: Category,
    threads: int | None,
) -> None:
    from celu.config.reading import validate
    from celu.config.schema import Split
    from celu.config.templates import AVAZU, CRITEO, write_settings
    from celu.prepare.pipeline import Target
    from celu.prepare.pipeline import prepare as prepare_stores
    from celu.prepare.presets import PRESETS

    split = validate(Split, given, Path("--seed, --test, --validation"))
    parties = PRESETS[name](split, category)
    targets = [Target(columns, out / party / "store") for party, columns in parties.items()]
    with _show_progress() as progress:
        reports = prepare_stores(sources, targets, progress, replace=force, threads=threads)
    write_settings(out, CRITEO if name == "criteo" else AVAZU, aligned=False)
    _print_reports(reports)
    console = Console(soft_wrap=True)
    console.print(f"settings in {escape(str(out))}: job.toml, guest/party.toml, host/party.toml.")
    console.print("Next: celu certs, then celu align and celu run at each party.")


@contextmanager
def _show_progress() -> Iterator[ProgressCallback]:
    """A progress bar on a terminal; otherwise a line at the start of each phase."""
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

    def update(phase: str, done: int, total: int) -> None:
        if phase not in tasks:
            tasks[phase] = bar.add_task(phase, total=total)
            if not console.is_terminal:
                console.print(f"{phase} ...")
        bar.update(tasks[phase], completed=done)  # type: ignore[arg-type]

    with bar:
        yield update


def _print_reports(reports: list[Report]) -> None:
    console = Console(soft_wrap=True)
    for report in reports:
        counts = [f"{count:,} {part}" for part, count in report.rows.items()]
        rows = f"{', '.join(counts[:-1])} and {counts[-1]}"
        console.print(f"{escape(str(report.out))}: {rows} rows")
        if report.label is not None:
            console.print(f"  {escape(report.label)}")
        for warning in report.warnings:
            console.print(f"  [yellow]warning[/yellow] {escape(warning)}")
        for column, count in report.unseen.items():
            console.print(
                f"  column {escape(repr(column))}: {count:,} rows have values that are not in its "
                "vocabulary"
            )
