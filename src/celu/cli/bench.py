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
    bench.command("data")(data)
    bench.command("psi")(psi)
    bench.command("quality")(quality)
    bench.command("codec")(codec)
    bench.command("link")(link)
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


def data(
    out: _Out = Path("bench-out/data"),
    rows: Annotated[int, typer.Option(min=100_000, help="Rows of the large file.")] = 10_000_000,
    turns: Annotated[int, typer.Option(min=1, help="Measurements of each side.")] = 3,
) -> None:
    """Preparing against a bare scan, its memory, and the feed (about 15 minutes, 8 GB of disk)."""
    from celu.bench.data import bench_data

    console = Console()
    result = bench_data(console.print, small=rows // 10, large=rows, turns=turns)
    result.show(console)
    console.print(f"written to {result.write(out)}", soft_wrap=True)


def psi(out: _Out = Path("bench-out/psi")) -> None:
    """Private set intersection against bare multiplications (about 6 minutes on two cores)."""
    from celu.bench.psi import bench_psi

    console = Console()
    result = bench_psi(console.print)
    result.show(console)
    console.print(f"written to {result.write(out)}", soft_wrap=True)


def quality(
    folder: Annotated[
        Path, typer.Argument(help="Holds criteo_random.tsv.gz and avazu_all.csv.gz.")
    ],
    out: _Out = Path("bench-out/quality"),
    splits: Annotated[int, typer.Option(min=1, help="Number of random splits.")] = 5,
) -> None:
    """Raw click data to held-out AUC, by way of prepare and align (about 8 minutes)."""
    from celu.bench.quality import bench_quality

    console = Console()
    result = bench_quality(console.print, folder, list(range(1, splits + 1)))
    result.show(console)
    console.print(f"written to {result.write(out)}", soft_wrap=True)


def codec(
    folder: Annotated[
        Path | None, typer.Option("--data", help="Holds criteo_random.tsv.gz; else it is left out.")
    ] = None,
    out: _Out = Path("bench-out/codec"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
) -> None:
    """Bytes, time and rounds of each codec (about 15 minutes)."""
    from celu.bench.codec import bench_codec

    console = Console()
    result = bench_codec(console.print, folder, list(range(1, seeds + 1)))
    result.show(console)
    console.print(f"written to {result.write(out)}", soft_wrap=True)


def link(out: _Out = Path("bench-out/link")) -> None:
    """How full an emulated line is while training, and virtual time (about 3 minutes)."""
    from celu.bench.link import bench_link

    console = Console()
    result = bench_link(console.print)
    result.show(console)
    console.print(f"written to {result.write(out)}", soft_wrap=True)
