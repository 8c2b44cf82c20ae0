"""`scripts/bench NAME --out DIR`: measure speed and quality."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from celu.cli.app import run_app
from celu.errors import ConfigError

if TYPE_CHECKING:
    from bench.report import BenchResult, Log

_Out = Annotated[Path, typer.Option(help="The folder for result.json.")]


app = typer.Typer(
    name="bench",
    help="Benchmarks. Each prints a table and writes it as JSON into the folder of --out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _report(measure: Callable[[Log], BenchResult], out: Path) -> None:
    console = Console()
    result = measure(console.print)
    result.show(console)
    console.print(f"written to {result.write(out)}", soft_wrap=True)


@app.command("step")
def step(
    out: _Out = Path("bench-out/step"),
    turns: Annotated[int, typer.Option(min=1, help="Measurements of each side.")] = 3,
    device: Annotated[
        str, typer.Option(help="cpu; or cuda, which measures only training in one process.")
    ] = "cpu",
) -> None:
    """The cost of a step, compared with hand-written loops (about 8 minutes on two cores)."""
    from bench.device_step import bench_device_step
    from bench.step import bench_step

    if device == "cpu":
        _report(lambda log: bench_step(log, turns=turns), out)
    else:
        _report(lambda log: bench_device_step(log, device, turns=turns), out)


@app.command("precision")
def precision(
    out: _Out = Path("bench-out/precision"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
    device: Annotated[str, typer.Option(help="A GPU: a CPU has no TF32.")] = "cuda",
) -> None:
    """What TF32 costs in AUC, with the paper's sizes (about 3 minutes on a GPU)."""
    from bench.precision import bench_precision

    _report(lambda log: bench_precision(log, device, list(range(1, seeds + 1))), out)


@app.command("rounds")
def rounds(
    out: _Out = Path("bench-out/rounds"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
) -> None:
    """Rounds to the same AUC on the flights data, with two tuned baselines (about 8 minutes)."""
    from bench.rounds import bench_rounds

    _report(lambda log: bench_rounds(log, seeds=list(range(1, seeds + 1))), out)


@app.command("data")
def data(
    out: _Out = Path("bench-out/data"),
    rows: Annotated[int, typer.Option(min=100_000, help="Rows of the large file.")] = 10_000_000,
    turns: Annotated[int, typer.Option(min=1, help="Measurements of each side.")] = 3,
) -> None:
    """`celu prepare` compared with a bare scan, and batch loading (6 minutes, 10 GB of disk)."""
    from bench.data import bench_data

    _report(lambda log: bench_data(log, small=rows // 10, large=rows, turns=turns), out)


@app.command("predict")
def predict(
    out: _Out = Path("bench-out/predict"),
    rows: Annotated[
        int, typer.Option(min=10_000, help="Rows of the large store, for the memory.")
    ] = 10_000_000,
    line_rows: Annotated[
        int, typer.Option(min=10_000, help="Rows that are sent over the emulated link.")
    ] = 1_000_000,
    turns: Annotated[int, typer.Option(min=1, help="Measurements of each side.")] = 12,
) -> None:
    """`celu predict` compared with a plain loop, its use of a link, its memory (10 minutes)."""
    from bench.predict import bench_predict

    _report(lambda log: bench_predict(log, rows=rows, line_rows=line_rows, turns=turns), out)


@app.command("psi")
def psi(out: _Out = Path("bench-out/psi")) -> None:
    """Private set intersection compared with bare multiplications (40 minutes on two cores)."""
    from bench.psi import bench_psi

    _report(bench_psi, out)


@app.command("quality")
def quality(
    folder: Annotated[
        Path, typer.Argument(help="The folder of criteo_random.tsv.gz and avazu_all.csv.gz.")
    ],
    out: _Out = Path("bench-out/quality"),
    splits: Annotated[int, typer.Option(min=1, help="Number of random splits.")] = 5,
) -> None:
    """From raw click data to held-out AUC: prepare, align, train (about 8 minutes)."""
    from bench.quality import bench_quality

    _report(lambda log: bench_quality(log, folder, list(range(1, splits + 1))), out)


@app.command("tabular")
def tabular(
    folder: Annotated[
        Path | None,
        typer.Option("--data", help="The folder of criteo_random.tsv.gz; without it, no Criteo."),
    ] = None,
    out: _Out = Path("bench-out/tabular"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Tables at a time, one core each.")] = 2,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A table to measure: flights, criteo, diamonds, movies or vietnam."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where networks train: cpu or cuda.")] = "cpu",
) -> None:
    """Federated AUC on tables, compared with pooled models and LightGBM (about 40 minutes)."""
    from bench.tabular import bench_tabular

    numbers = list(range(1, seeds + 1))
    _report(lambda log: bench_tabular(log, folder, numbers, workers, only or (), device), out)


@app.command("privacy")
def privacy(
    folder: Annotated[Path, typer.Option("--data", help="The folder of criteo_random.tsv.gz.")],
    out: _Out = Path("bench-out/privacy"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
    large: Annotated[
        bool,
        typer.Option("--large", help="Only the cost with up to 10.4 million rows (4 GB each)."),
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, one core each.")] = 1,
    device: Annotated[str, typer.Option(help="Where --large trains: cpu or cuda.")] = "cpu",
) -> None:
    """What defences cost, and what an audit still finds (about 25 minutes of one core).

    Finished runs are saved in runs.jsonl: start the same command again to resume.
    """
    from bench.privacy import bench_privacy
    from bench.privacy_at_scale import bench_privacy_at_scale

    if device != "cpu" and not large:
        raise ConfigError(f"--device: expected cpu without --large, got {device}")
    numbers = list(range(1, seeds + 1))
    if large:
        _report(lambda log: bench_privacy_at_scale(log, folder, numbers, workers, device, out), out)
    else:
        _report(lambda log: bench_privacy(log, folder, numbers, workers, out), out)


@app.command("codec")
def codec(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--data", help="The folder of criteo_random.tsv.gz; without it, synthetic clicks only."
        ),
    ] = None,
    out: _Out = Path("bench-out/codec"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
    device: Annotated[
        str, typer.Option(help="cpu; or cuda, which measures only encoding and decoding there.")
    ] = "cpu",
) -> None:
    """Bytes, time and rounds with each codec (about 15 minutes)."""
    from bench.codec import bench_codec
    from bench.device_codec import bench_device_codec

    if device != "cpu":
        _report(lambda log: bench_device_codec(log, device), out)
        return
    _report(lambda log: bench_codec(log, folder, list(range(1, seeds + 1))), out)


@app.command("link")
def link(
    out: _Out = Path("bench-out/link"),
    profile: Annotated[str, typer.Option(help="The link: wan-300, wan-100.")] = "wan-300",
    between: Annotated[
        str | None,
        typer.Option(
            help="GUEST,HOST,ADDRESS: two network namespaces joined by such a link, and the "
            "guest's address; needs root. Measures the real link as well as the emulated one."
        ),
    ] = None,
) -> None:
    """Link utilization while training, also through nginx, and virtual time (5 minutes)."""
    from bench.link import bench_link
    from bench.real_path import RealPath

    path = None if between is None else RealPath.read(between)
    _report(lambda log: bench_link(log, profile, path), out)


@app.command("serve")
def serve(
    out: _Out = Path("bench-out/serve"),
    turns: Annotated[int, typer.Option(min=1, help="Measurements of each side.")] = 40,
) -> None:
    """Asks over a link and requests over HTTP, compared with bare ones (some minutes)."""
    from bench.serve import bench_serve

    _report(lambda log: bench_serve(log, turns=turns), out)


@app.command("checkpoint")
def checkpoint(
    out: _Out = Path("bench-out/checkpoint"),
    turns: Annotated[int, typer.Option(min=1, help="Measurements of each side.")] = 3,
) -> None:
    """The cost of checkpoints in a run over a WAN (about 5 minutes on two cores)."""
    from bench.checkpoint import bench_checkpoint

    _report(lambda log: bench_checkpoint(log, turns=turns), out)


@app.command("ranks")
def ranks(
    out: _Out = Path("bench-out/ranks"),
    turns: Annotated[int, typer.Option(min=1, help="Measurements of each number of ranks.")] = 5,
) -> None:
    """The work of a party on two and four ranks, over that of one process (about 15 minutes)."""
    from bench.ranks import bench_ranks

    _report(lambda log: bench_ranks(log, turns=turns), out)


@app.command("hostile")
def hostile(
    out: _Out = Path("bench-out/hostile"),
    seconds: Annotated[float, typer.Option(min=1, help="How long each flood lasts.")] = 60.0,
) -> None:
    """Memory of a listening party that strangers flood while it trains (10 minutes; nginx)."""
    from bench.hostile import bench_hostile

    _report(lambda log: bench_hostile(log, seconds), out)


@app.command("e2e")
def e2e(
    out: _Out = Path("bench-out/e2e"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
    paper_shape: Annotated[
        bool, typer.Option("--paper-shape", help="The paper's sizes; needs a GPU.")
    ] = False,
) -> None:
    """Seconds to the same AUC over a WAN, with two tuned baselines (about 15 minutes)."""
    from bench.e2e import PAPER, SMALL, bench_e2e

    shape = PAPER if paper_shape else SMALL
    _report(lambda log: bench_e2e(log, shape, list(range(1, seeds + 1))), out)


@app.command("paper")
def paper(
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="table2, similarity, time, theory, beyond, compensated, auto or report; repeat it "
            "for several."
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            help="smoke: minutes on any machine. cpu: samples of real data, an hour or two on two "
            "cores. gpu: the paper's sizes on a large GPU, minutes for a part with 8 workers."
        ),
    ] = "smoke",
    seeds: Annotated[
        str | None, typer.Option(help="Such as 1,2,3. Default: those of the profile.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="For --profile cpu: the folder of criteo_random.tsv.gz and avazu_all.csv.gz.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The folder for tables, figures, runs.jsonl and data.")
    ] = Path("bench-out/paper"),
) -> None:
    """The paper's tables and figures, and more variants (smoke: under 8 minutes).

    A part NAME writes NAME.json, NAME.md, NAME-*.svg and NAME-*.png. Finished runs are saved in
    runs.jsonl: start the same command again to resume. Figures need matplotlib: the extra
    "figures".
    """
    from bench.paper.runner import bench_paper

    console = Console()

    def log(message: str) -> None:
        console.print(message, markup=False, highlight=False, soft_wrap=True)

    for result, files in bench_paper(
        log,
        out,
        parts=part or (),
        profile=profile,
        seeds=_seeds(seeds),
        workers=workers,
        data=folder,
    ):
        result.show(console)
        log(f"written to {', '.join(str(path) for path in files)}")


def _seeds(text: str | None) -> list[int]:
    """Parse whole numbers separated by commas; raises ConfigError."""
    try:
        seeds = [int(number) for number in text.split(",")] if text else []
    except ValueError:
        seeds = [-1]
    if any(seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds: expected different whole numbers, such as 1,2,3; got {text!r}")
    return seeds


if __name__ == "__main__":
    run_app(app)
