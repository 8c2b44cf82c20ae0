"""`scripts/bench step`: the cost of a step of the engine, compared with hand-written loops.

Each figure is the ratio of two sides that are measured alternately. The time of a step is the
median over the steps of a turn, and the ratio is that of the fastest turns: on a shared machine
other processes can only make a turn slower.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

import celu
from bench.report import BenchResult, Log
from celu.config.schema import Split
from celu.config.templates import CRITEO, SettingsTemplate, write_settings
from celu.data.clicks import click_chunk, field_sizes
from celu.data.dataset import Dataset
from celu.data.order import BatchOrder
from celu.data.store import PARTS, StoreWriter, coded_schema, with_ids
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower
from celu.party import Guest, Host
from celu.testing import free_port, make_keys, run_parties

BATCH, WIDTH, EMBEDDING = 4096, 256, 128
BATCHES = 8  # number of different batches; ids repeat between them as in real data
WARM_UP = 3
SMALL, LARGE = 100_000, 4_000_000

_JOB = """\
batch_size = {batch}
rounds = {rounds}
[hosts.host]
z_width = {width}
[method]
R = 1
[optimizer]
lr = 0.01
[evaluation]
every = 1000000
rows = 256
metric = "loss"
"""


def bench_step(log: Log, turns: int = 3, rounds: int = 12) -> BenchResult:
    """Measure all four figures."""
    result = BenchResult("step", seeds=[1])
    torch.set_num_threads(1)  # two parties share two cores
    log("one process, the paper's model: engine and hand-written loop")
    engine, loop = _fastest(turns, _engine_steps, _loop_steps, rounds)
    _add(result, "simulate_over_loop", "engine in one process", "hand-written loop", engine, loop)
    log("embedding tables of 4 M and 100 k rows")
    large, small = _fastest(
        turns, lambda n: _table_steps(LARGE, n), lambda n: _table_steps(SMALL, n), rounds
    )
    _add(result, "large_table_over_small", "4 M rows", "100 k rows", large, small)
    with tempfile.TemporaryDirectory() as scratch:
        for figure, thin, steps in (
            ("grpc_over_gloo_thin", True, 10 * rounds),
            ("grpc_over_gloo_paper", False, 2 * rounds),
        ):
            model = "a thin" if thin else "the paper's"
            log(f"two processes, {model} model: gRPC with TLS, and gloo")
            folder = Path(scratch) / figure
            write_pair(folder, thin, steps)
            grpc, gloo = _fastest(
                2 * turns if thin else turns,  # short turns vary most on a shared machine
                lambda n, f=folder: _grpc_steps(f, n),
                lambda n, f=folder: _gloo_steps(f, n),
                steps,
            )
            _add(result, figure, "celu run, TLS", "hand-written loop over gloo", grpc, gloo)
    result.notes.append(
        f"batch {BATCH}, Z {WIDTH}; the paper's model: 26 fields of ids, embedding {EMBEDDING}, "
        "hidden 256; thin: one linear layer of 13 numbers; one thread per process; "
        "AdaGrad; R=1"
    )
    return result


def _fastest(turns: int, ours: Any, reference: Any, steps: int) -> tuple[float, float]:
    """The median step in ms of each side's fastest turn; the sides alternate."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        for side, measure in zip(times, (ours, reference), strict=True):
            side.append(1000 * median(measure(steps)[WARM_UP:]))
    return min(times[0]), min(times[1])


def _add(result: BenchResult, figure: str, a: str, b: str, ms_a: float, ms_b: float) -> None:
    result.figures[figure] = round(ms_a / ms_b, 3)
    result.rows.append(
        {"figure": figure, "ours": a, "ms a step": round(ms_a, 2), "against": b,
         "its ms a step": round(ms_b, 2), "ratio": round(ms_a / ms_b, 3)}
    )  # fmt: skip


def step_job(rounds: int) -> celu.Job:
    """Vanilla training without evaluations."""
    return celu.Job(
        rounds=rounds,
        batch_size=BATCH,
        hosts={"host": celu.HostTerms(z_width=WIDTH)},
        method=celu.Method(R=1),
        optimizer=celu.Optimizer(lr=0.01),
        evaluation=celu.Evaluation(every=1_000_000, rows=256),
    )


def paper_parties() -> tuple[Guest, Host]:
    """The paper's WDL on synthetic Criteo-shaped rows."""
    clicks = click_chunk("criteo", seed=1, chunk=0, rows=BATCHES * BATCH)
    numbers = torch.stack([torch.from_numpy(c) for c in clicks.guest.values()], dim=1)
    ids = torch.stack([torch.from_numpy(c).long() for c in clicks.host.values()], dim=1)
    sizes = {"ids": tuple(field_sizes("criteo")["host"].values())}
    guest_rows = Dataset({"numbers": numbers}, torch.from_numpy(clicks.label))
    host_rows = Dataset({"ids": ids}, None, sizes)
    torch.manual_seed(1)
    bottom = Tower(WIDTH, {"numbers": 13}, {}, hidden=(256, 256))
    guest = Guest(
        top=WideDeepTop((WIDTH, WIDTH)),
        loss="binary",
        train=guest_rows,
        test=guest_rows,
        bottom=bottom,
    )
    return guest, Host(
        bottom=Tower(WIDTH, {"ids": 26}, sizes, EMBEDDING), train=host_rows, test=host_rows
    )


def _timed_simulation(guest: Guest, host: Host, rounds: int) -> list[float]:
    at: list[float] = []

    def emit(event: celu.Event) -> None:
        if event.event in ("started", "round"):
            at.append(time.perf_counter())

    celu.simulate(step_job(rounds), guest, {"host": host}, callbacks=[emit])
    return [after - before for before, after in pairwise(at)]


def _engine_steps(rounds: int) -> list[float]:
    return _timed_simulation(*paper_parties(), rounds)


def _loop_steps(rounds: int) -> list[float]:
    guest, host = paper_parties()
    assert guest.bottom is not None
    job = step_job(rounds)
    modules = [host.bottom, guest.bottom, guest.top]
    optimizer = torch.optim.Adagrad([p for m in modules for p in m.parameters()], lr=0.01)
    order = BatchOrder(job.seed, host.train.num_rows, BATCH)
    times = []
    for round_ in range(rounds):
        started = time.perf_counter()
        rows = order.rows(round_)
        mine = guest.train.take(rows)
        assert mine.labels is not None
        z = host.bottom(**host.train.take(rows).inputs)
        output = guest.top(guest.bottom(**mine.inputs), z)
        guest.loss.per_instance(output, mine.labels).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    return times


def _table_steps(table_rows: int, rounds: int) -> list[float]:
    """Time a host whose ids are all below 100 k, with an embedding table of any size."""
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(0, SMALL, (BATCHES * BATCH, 26), generator=random)
    labels = torch.randint(0, 2, (len(ids),), generator=random).float()
    numbers = torch.randn(len(ids), 13, generator=random)
    # 26 columns share one table: all fields get the offset 0 of the first one.
    sizes = {"ids": (table_rows, *([1] * 25))}
    bottom = Tower(WIDTH, {"ids": 26}, sizes, EMBEDDING)
    bottom.get_buffer("embeddings.ids.offsets").zero_()
    host_rows, guest_rows = (
        Dataset({"ids": ids}, None, sizes),
        Dataset({"numbers": numbers}, labels),
    )
    top = WideDeepTop((WIDTH, WIDTH))
    guest_bottom = Tower(WIDTH, {"numbers": 13}, {})
    guest = Guest(top=top, loss="binary", train=guest_rows, test=guest_rows, bottom=guest_bottom)
    return _timed_simulation(guest, Host(bottom=bottom, train=host_rows, test=host_rows), rounds)


def write_pair(folder: Path, thin: bool, rounds: int) -> None:
    """Write rows, settings and keys for a guest and a host that run as two processes."""
    import pyarrow as pa

    clicks = click_chunk("criteo", seed=1, chunk=0, rows=BATCHES * BATCH)
    split = Split()
    columns: dict[str, Any] = {
        "guest": {**clicks.guest, "label": clicks.label},
        "host": clicks.guest if thin else clicks.host,
    }
    sizes = {"guest": {}, "host": {} if thin else field_sizes("criteo")["host"]}
    for name in ("guest", "host"):
        table = pa.table(columns[name])
        schema = coded_schema(table.column_names, sizes[name], split)
        with StoreWriter(folder / name / "store", schema) as store:
            for part in PARTS:
                ids = [f"{part} {row}" for row in range(table.num_rows)]
                store.write(part, with_ids(table, ids, split))
    write_settings(folder, THIN if thin else CRITEO, port=free_port(), local=True)
    (folder / "job.toml").write_text(_JOB.format(batch=BATCH, rounds=rounds, width=WIDTH))
    make_keys(folder, ["guest", "host"])


THIN = SettingsTemplate(
    guest="guest",
    host="host",
    bottom='"bench.split_models:ThinBottom"',
    top='"bench.split_models:ThinTop"',
)


def _grpc_steps(folder: Path, rounds: int) -> list[float]:
    out = f"run-{time.monotonic_ns()}"
    runs = run_parties(folder, ["guest", "host"], folder / "job.toml", out, timeout_s=300)
    at = [e["t"] for e in runs["host"].events if e["event"] in ("started", "round")]
    assert len(at) == rounds + 1
    return [after - before for before, after in pairwise(at)]


def _gloo_steps(folder: Path, rounds: int) -> list[float]:
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.gloo_loop",
                str(folder / name / "party.toml"),
                str(folder / "job.toml"),
                port,
            ],
            stdout=subprocess.PIPE,
        )
        for name in ("guest", "host")
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    times: list[float] = json.loads(outputs[1])
    assert len(times) == rounds
    return times
