"""`celu inspect`: show what a store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from celu.cli.console import Console
from celu.config.columns import FittedBag, FittedCategory
from celu.config.schema import LABEL, WEIGHT, Part, StoreSchema, describe_label
from celu.data.alignment import read_alignment
from celu.data.gate import ColumnFacts, Gate, check_store, raise_errors
from celu.data.store import Store, open_store
from celu.privacy.ledger import read_ledger
from celu.privacy.secret_key import LABELS

_MAX_WIDTH = 10_000
_HEADINGS = ("column", "kind", "min", "max", "mean", "missing", "unseen", "in use")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


def inspect(
    store: Annotated[Path, typer.Argument(help="A store that celu prepare made.")],
    alignment: Annotated[
        Path | None,
        typer.Option(help="An alignment of the store, to show how many of its rows are aligned."),
    ] = None,
) -> None:
    """Show a store: rows, columns, ranges, positive rate, codes in use, and problems.

    Of a guest's store also what runs have spent on the privacy of its labels.

    Ends with exit code 4 if a run would refuse the store.
    """
    opened = open_store(store)
    console = Console()
    _show_rows(console, opened, alignment)
    gate = check_store(opened)
    _show_columns(console, opened, gate)
    text = describe_label(opened.schema)
    if text is not None:
        console.print(escape(text), soft_wrap=True)
    rate = _positive_rate(opened, gate)
    if rate is not None:
        console.print(f"positive rate: {rate:.4f}")
    ledger = read_ledger(opened.path.resolve().parent / LABELS.file)
    if ledger.unprotected and opened.schema.label is not None:
        console.print("label privacy: none, after a run without label_epsilon", soft_wrap=True)
    elif ledger.releases and opened.schema.label is not None:
        epsilons = " + ".join(f"{release.epsilon:g}" for release in ledger.releases)
        console.print(f"label privacy: epsilon {ledger.total:g} is spent ({epsilons})")
    findings = gate.findings()
    for finding in findings:
        colour = "red" if finding.level == "error" else "yellow"
        console.print(
            f"[{colour}]{finding.level}[/{colour}] {escape(str(finding))}", soft_wrap=True
        )
    raise_errors(opened, findings)
    if not findings:
        console.print("no problems found")


def _positive_rate(store: Store, gate: Gate) -> float | None:
    """The share of positive training rows, of a label with two values."""
    label = gate.facts["train"].get(LABEL)
    if label is None or len(label.values) != 2:
        return None
    low, high = sorted(label.values)
    share = (label.mean - low) / (high - low)
    classes = store.schema.classes or [low, high]
    if isinstance(classes[0], str):  # whose codes are 0 and 1
        return share
    return share if float(classes[1]) > float(classes[0]) else 1 - share


def _show_rows(console: Console, store: Store, alignment: Path | None) -> None:
    schema = store.schema
    console.print(f"[bold]{escape(str(store.path))}[/bold]", soft_wrap=True)
    counts = ", ".join(f"{schema.rows[part]:,} {part}" for part in store.parts)
    shares = f"test share {schema.split.test:.0%}, "
    if schema.split.validation:
        shares = f"validation share {schema.split.validation:.0%}, {shares}"
    console.print(
        f"rows: {counts} ({shares}seed {schema.split.seed}), "
        f"id column {escape(schema.id)}, schema {schema.digest()[:12]}",
        soft_wrap=True,
    )
    if alignment is not None:
        facts = read_alignment(alignment, store).facts
        for part in store.parts:
            share = facts.rows[part] / max(1, schema.rows[part])
            console.print(f"aligned: {facts.rows[part]:,} {part} rows, {share:.1%} of the store")
        for peer, count in facts.common.items():
            console.print(f"common with {peer}: {count:,} of its {facts.peers[peer]:,} rows")


def _show_columns(console: Console, store: Store, gate: Gate) -> None:
    """A table, or a list where a terminal is too narrow for whole names; a file is never narrow."""
    part = _shown_part(store.schema)
    title = "training rows" if part == "train" else f"{part} rows"
    rows = [[escape(name), *_cells(store, name, gate.facts[part][name])] for name in gate.columns]
    table = Table(title=title)
    for index, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="left" if index < 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    width = console.measure(table, options=console.options.update(width=_MAX_WIDTH)).maximum
    if not console.is_terminal or width <= console.width:
        console.width = max(width, console.width)
        console.print(table)
        return
    console.print(title)
    for name, kind, *figures in rows:
        console.print(f"  [bold]{name}[/bold]", soft_wrap=True)
        named = zip(_HEADINGS[2:], figures, strict=True)
        shown = ", ".join([kind, *(f"{heading} {value}" for heading, value in named if value)])
        console.print(f"    {shown}", soft_wrap=True)


def _shown_part(schema: StoreSchema) -> Part:
    """Training rows; of rows to be scored, of which none are, the test rows."""
    return next((part for part in schema.parts if schema.rows[part]), "train")


def _cells(store: Store, name: str, facts: ColumnFacts) -> list[str]:
    rows = max(1, facts.rows)
    column = store.schema.categories.get(name) or store.schema.bags.get(name)
    if facts.rows == facts.nulls + facts.bad:
        return ["-"] * 7
    span = [f"{facts.low:g}", f"{facts.high:g}"]
    missing = f"{facts.missing / rows:.1%}"
    if isinstance(column, FittedBag):
        kind = f"bag, {_codes(column)}"
    elif column is not None:
        kind = f"{len(column.edges) + 1} quantiles" if column.edges else _codes(column)
    else:
        kind = "number"
        missing = _filled(store.schema, name)
        if name == LABEL:
            kind, missing = f"label, {store.schema.label_type}", ""
        elif name == WEIGHT:
            kind, missing = "weight", ""
        return [kind, *span, f"{facts.mean:.4g}", missing, "", ""]
    unseen = f"{facts.unseen / rows:.1%}" if column.vocabulary else ""
    return [kind, *span, "", missing, unseen, f"{facts.coverage:.1%}"]


def _codes(column: FittedCategory | FittedBag) -> str:
    return f"{column.size - 1:,} buckets" if column.buckets else f"{column.size:,} codes"


def _filled(schema: StoreSchema, name: str) -> str:
    """The share of rows whose number was missing and was filled, if it is known."""
    if name in schema.numbers:
        raw, can_be_missing = name, schema.numbers[name].missing is not None
    else:
        raw, _, _ = name.rpartition(".")
        can_be_missing = raw in schema.dates and schema.dates[raw].missing is not None
    part = _shown_part(schema)
    num_missing = schema.missing.get(raw, 0 if part == "train" else None)
    if not can_be_missing or num_missing is None:
        return ""
    return f"{num_missing / max(1, schema.rows[part]):.1%}"
