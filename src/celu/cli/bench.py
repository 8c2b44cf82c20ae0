"""`celu bench`: speed and quality, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

_Out = Annotated[Path, typer.Option(help="Where result.json is written.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    bench = typer.Typer(
        help="Measure. Every bench prints a table and writes DIR/result.json.", no_args_is_help=True
    )
    bench.command("step")(step)
    bench.command("rounds")(rounds)
    app.add_typer(bench, name="bench")


def step(
    out: _Out = Path("bench-out/step"),
    turns: Annotated[int, typer.Option(min=1, help="Measurements of each side.")] = 3,
) -> None:
    """A step's cost against loops written by hand (about 8 minutes on two cores)."""
    from celu.bench.step import bench_step

    console = Console()
    result = bench_step(console.print, turns=turns)
    result.show(console)
    console.print(f"written to {result.write(out)}", soft_wrap=True)


def rounds(
    out: _Out = Path("bench-out/rounds"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
) -> None:
    """Rounds to the same AUC on the flights data, two baselines tuned (about 8 minutes)."""
    from celu.bench.rounds import bench_rounds

    console = Console()
    result = bench_rounds(console.print, seeds=list(range(1, seeds + 1)))
    result.show(console)
    console.print(f"written to {result.write(out)}", soft_wrap=True)
