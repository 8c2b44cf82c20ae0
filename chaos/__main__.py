"""`scripts/chaos --seeds N`: whole runs under a nemesis, in virtual time."""

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

    from chaos.many import Totals

_NAMED = 20  # of the seeds that failed


app = typer.Typer(
    name="chaos",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def chaos(
    seeds: Annotated[int, typer.Option(min=1, help="How many runs.")] = 300,
    first: Annotated[int, typer.Option(min=0, help="The seed of the first.")] = 1,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that share the runs; one a core if not said."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="One run alone, with all that happens in it.")
    ] = None,
) -> None:
    """Try how celu bears what goes wrong: killed and paused parties, wires, power cuts, full disks.

    Each seed is a whole run of two or three parties in virtual time, with faults drawn from it. All
    parties must end with the bits of an undisturbed run, whatever errors they had to be started
    again after. The same seed gives the same run. Exit code 1: a promise was broken.
    """
    import torch

    torch.set_num_threads(1)  # as every run is: its tensors are small
    console = Console()
    if seed is not None:
        _show(console, seed)
        return
    from chaos.many import run_seeds

    began = time.monotonic()
    columns = (TextColumn("chaos"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=seeds)

        def told(totals: Totals) -> None:
            progress.update(task, completed=totals.num_seeds)

        share = workers or os.cpu_count() or 1
        totals = run_seeds(range(first, first + seeds), share, told)
    _report(console, totals, time.monotonic() - began)
    if totals.failed:
        named = ", ".join(str(verdict.seed) for verdict in totals.failed[:_NAMED])
        raise CeluError(
            f"{len(totals.failed)} of {seeds} seeds broke a promise: {named}. "
            f"scripts/chaos --seed {totals.failed[0].seed} shows what happens"
        )


def _show(console: Console, seed: int) -> None:
    """One run, line by line."""
    from chaos.running import run_seed

    verdict = run_seed(seed, traced=True)
    for line in verdict.trace:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if verdict.problem is not None:
        raise CeluError(f"seed {seed} broke a promise: {verdict.problem}")
    console.print(f"seed {seed}: all parties ended with the bits of the undisturbed run")


def _report(console: Console, totals: Totals, took_s: float) -> None:
    for title, counts in (("what struck", totals.struck), ("how processes ended", totals.ends)):
        console.print(_table(title, counts))
    for verdict in totals.failed[:_NAMED]:
        problem = str(verdict.problem).strip().splitlines()[-1]
        console.print(f"seed {verdict.seed}: {problem}", markup=False, soft_wrap=True)
    pace, hours = 60 * totals.num_seeds / took_s, totals.seconds / 3600
    console.print(
        f"{totals.num_seeds:,} runs, {len(totals.failed)} failed, {pace:,.0f} a minute; "
        f"{hours:,.1f} hours of virtual time"
    )


def _table(title: str, counts: Counter[str]) -> Table:
    table = Table(title=title)
    table.add_column("kind")
    table.add_column("times", justify="right")
    for kind, times in counts.most_common():
        table.add_row(kind, f"{times:,}")
    return table


if __name__ == "__main__":
    run_app(app)
