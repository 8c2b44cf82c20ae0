"""`celu inspect`: what is in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from celu.config.schema import LABEL
from celu.data.alignment import read_alignment
from celu.data.gate import ColumnFacts, Examiner, examine, refuse_errors
from celu.data.store import PARTS, Store, open_store


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


def inspect(
    store: Annotated[Path, typer.Argument(help="A store, as celu prepare makes it.")],
    alignment: Annotated[
        Path | None, typer.Option(help="An alignment of it, to show how much is covered.")
    ] = None,
) -> None:
    """Show a store: rows, columns, ranges, positive rate, coverage, and what the gate finds.

    Ends with exit code 4 where a run would refuse the store.
    """
    opened = open_store(store)
    console = Console()
    _show_rows(console, opened, alignment)
    examiner = examine(opened)
    console.print(_columns(opened, examiner))
    label = examiner.facts["train"].get(LABEL)
    if label is not None and label.values == {0.0, 1.0}:
        console.print(f"positive rate: {label.mean:.4f}")
    findings = examiner.findings()
    for finding in findings:
        colour = "red" if finding.level == "error" else "yellow"
        console.print(
            f"[{colour}]{finding.level}[/{colour}] {escape(str(finding))}", soft_wrap=True
        )
    refuse_errors(opened, findings)
    if not findings:
        console.print("the gate finds nothing to complain about")


def _show_rows(console: Console, store: Store, alignment: Path | None) -> None:
    schema = store.schema
    console.print(f"[bold]{escape(str(store.path))}[/bold]", soft_wrap=True)
    counts = ", ".join(f"{schema.rows[part]:,} {part}" for part in PARTS)
    console.print(
        f"rows: {counts} (held out: {schema.split.test:.0%} by seed {schema.split.seed}), "
        f"id from {escape(schema.id)}, schema {schema.digest()[:12]}",
        soft_wrap=True,
    )
    if alignment is not None:
        facts = read_alignment(alignment, store).facts
        for part in PARTS:
            share = facts.rows[part] / max(1, schema.rows[part])
            console.print(f"aligned: {facts.rows[part]:,} {part} rows, {share:.1%} of the store's")
        for peer, count in facts.common.items():
            console.print(f"common with {peer}: {count:,} of the {facts.peers[peer]:,} it has")


def _columns(store: Store, examiner: Examiner) -> Table:
    table = Table(title="training rows")
    for heading in ("column", "sort"):
        table.add_column(heading, no_wrap=heading == "sort", overflow="fold")
    for heading in ("from", "to", "mean", "missing", "unseen", "in use"):
        table.add_column(heading, justify="right")
    for name in examiner.columns:
        facts = examiner.facts["train"][name]
        table.add_row(escape(name), *_cells(store, name, facts))
    return table


def _cells(store: Store, name: str, facts: ColumnFacts) -> list[str]:
    rows = max(1, facts.rows)
    category = store.schema.categories.get(name)
    if facts.rows == facts.nulls + facts.bad:
        return ["-"] * 7
    span = [f"{facts.low:g}", f"{facts.high:g}"]
    if category is None:
        kind = f"label, {store.schema.label_type}" if name == LABEL else "number"
        return [kind, *span, f"{facts.mean:.4g}", "", "", ""]
    sort = f"{category.size - 1:,} buckets" if category.buckets else f"{category.size:,} codes"
    unseen = f"{facts.unseen / rows:.1%}" if category.vocabulary else ""
    return [sort, *span, "", f"{facts.missing / rows:.1%}", unseen, f"{facts.coverage:.1%}"]
