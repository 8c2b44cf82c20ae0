"""`scripts/chaos --seeds N`: complete runs with injected faults, in virtual time."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from celu.cli.app import run_app
from celu.errors import CeluError

if TYPE_CHECKING:
    from collections import Counter

    from chaos.sweep import Totals

_MAX_LISTED = 20  # failed seeds

app = typer.Typer(
    name="chaos",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def chaos(
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs.")] = 300,
    first: Annotated[int, typer.Option(min=0, help="Seed of the first run.")] = 1,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of processes; by default one per core."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run only this seed, and print its trace.")
    ] = None,
) -> None:
    """Inject faults: killed and paused parties, network faults, power cuts, full disks, lost files.

    Each seed is a complete run of two or three parties in virtual time, with random faults. Parties
    that stop are restarted. All must end with the same bits as a run without faults. The same seed
    gives the same run. Exit code 1: a run violated an invariant.
    """
    import torch

    torch.set_num_threads(1)  # the tensors are small
    console = Console()
    if seed is not None:
        _show(console, seed)
        return
    from chaos.sweep import run_seeds

    began = time.monotonic()
    columns = (TextColumn("chaos"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=seeds)

        def show(totals: Totals) -> None:
            progress.update(task, completed=totals.num_seeds)

        num_workers = workers or os.cpu_count() or 1
        totals = run_seeds(range(first, first + seeds), num_workers, show)
    _report(console, totals, time.monotonic() - began)
    if totals.failed:
        listed = ", ".join(str(verdict.seed) for verdict in totals.failed[:_MAX_LISTED])
        raise CeluError(
            f"{len(totals.failed)} of {seeds} seeds violated an invariant: {listed}. "
            f"Run scripts/chaos --seed {totals.failed[0].seed} for the trace"
        )


def _show(console: Console, seed: int) -> None:
    """Run one seed and print its trace."""
    from chaos.run import run_seed

    verdict = run_seed(seed, traced=True)
    for line in verdict.trace:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if verdict.problem is not None:
        raise CeluError(f"seed {seed} violated an invariant: {verdict.problem}")
    console.print(f"seed {seed}: all parties ended with the same bits as without faults")


def _report(console: Console, totals: Totals, took_s: float) -> None:
    tables = (("injected faults", totals.faults), ("how processes ended", totals.ends))
    for title, counts in tables:
        console.print(_table(title, counts))
    for verdict in totals.failed[:_MAX_LISTED]:
        problem = str(verdict.problem).strip().splitlines()[-1]
        console.print(f"seed {verdict.seed}: {problem}", markup=False, soft_wrap=True)
    per_minute, hours = 60 * totals.num_seeds / took_s, totals.seconds / 3600
    console.print(
        f"{totals.num_seeds:,} runs, {len(totals.failed)} failed, {per_minute:,.0f} per minute; "
        f"{hours:,.1f} hours of virtual time"
    )


def _table(title: str, counts: Counter[str]) -> Table:
    table = Table(title=title)
    table.add_column("kind")
    table.add_column("count", justify="right")
    for kind, count in counts.most_common():
        table.add_row(kind, f"{count:,}")
    return table


if __name__ == "__main__":
    run_app(app)
