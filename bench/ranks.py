"""`scripts/bench ranks`: what it costs and brings to run a party on several ranks.

Work is CPU time of a step, summed over all ranks, over that of one process: it holds on a machine
whose cores are shared. The ranks are real processes that torchrun starts. Each makes the steps of a
host with a heavy bottom (Z, and the update from dZ); the guest's part is left out, so that nothing
else is timed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import celu
from bench.report import BenchResult, Log
from celu.engine.host_trainer import HostTrainer
from celu.models.tower import Tower
from celu.ranks.group import Group, joined
from celu.ranks.slices import ONE, Slices
from celu.transport.message import Kind, Message

BATCH, WIDTH, CODES, FIELDS = 4096, 128, 20_000, 8
STEPS, WARM_UP = 12, 3
_TIMEOUT_S = 600.0


def bench_ranks(log: Log, turns: int = 3) -> BenchResult:
    """The work of two and four ranks over that of one, the cost of the hub, and the speed-up."""
    result = BenchResult("ranks", seeds=[1])
    figures: dict[str, list[float]] = {}
    for _ in range(turns):
        one = _measure(1)
        for size in (2, 4):
            found = _measure(size)
            ratio = found["cpu_s"] / one["cpu_s"]
            figures.setdefault(f"rank_work_{size}_replicated", []).append(ratio)
            figures.setdefault(f"hub_cost_{size}", []).append(found["hub_s"] / found["cpu_s"])
            if size == 2:
                speed = one["seconds"] / found["seconds"]
                figures.setdefault("ranks_speedup", []).append(speed)
            row = {"ranks": size, "CPU over one process": ratio, **found}
            result.rows.append(row)
            log(", ".join(f"{name} {value:.3f}" for name, value in row.items()))
    result.figures |= {name: round(median(values), 4) for name, values in figures.items()}
    result.figures["hub_cost"] = result.figures.pop("hub_cost_2")
    result.figures.pop("hub_cost_4")
    result.notes.append(
        f"A step of a host: Z and an update, batch {BATCH}, {FIELDS} fields of {CODES} codes, "
        "replicated tables, one thread a rank. hub_cost: CPU time in collectives other than those "
        "of gradients. ranks_speedup: wall time of two ranks, which needs two free cores."
    )
    return result


def _measure(size: int) -> dict[str, float]:
    """CPU and wall seconds a step: of all ranks together, and of the slowest."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "bench.ranks", scratch]
        if size > 1:
            launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
            command = [sys.executable, "-m", *launcher, *command[1:]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            command, check=True, timeout=_TIMEOUT_S, env=environment, stderr=subprocess.DEVNULL
        )
        found = [json.loads(path.read_text()) for path in sorted(Path(scratch).glob("*.json"))]
    assert len(found) == size
    return {
        "cpu_s": sum(rank["cpu_s"] for rank in found),
        "hub_s": sum(rank["hub_s"] for rank in found),
        "seconds": max(rank["seconds"] for rank in found),
    }


class _TimedGroup:
    """Sums the CPU time that a group spends in collectives other than those of gradients."""

    def __init__(self, group: Slices) -> None:
        self.seconds = 0.0
        for name in ("share", "gather", "scatter"):
            setattr(group, name, self._timed(getattr(group, name)))
        self._depth = 0

    def _timed(self, method: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            started, self._depth = time.thread_time(), self._depth + 1
            try:
                return method(*arguments)
            finally:
                self._depth -= 1
                if not self._depth:  # one collective may use another
                    self.seconds += time.thread_time() - started

        return timed


@contextmanager
def _ranks() -> Iterator[Slices]:
    if "RANK" not in os.environ:
        yield ONE
        return
    with joined(_TIMEOUT_S) as group:
        yield group


def _work(out: Path) -> None:
    """Make the steps of one rank, and write what they took."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rows = BATCH * 4
    ids = torch.randint(CODES, (rows, FIELDS))
    data = celu.Dataset({"ids": ids}, sizes={"ids": (CODES,) * FIELDS})
    bottom: nn.Module = Tower(
        WIDTH, {"ids": FIELDS}, data.sizes, embedding_dim=32, hidden=(512, 512)
    )
    job = celu.Job(
        seed=1,
        batch_size=BATCH,
        rounds=STEPS + WARM_UP,
        guest="guest",
        hosts={"host": celu.HostTerms(z_width=WIDTH)},
        method=celu.Method(R=1),
    )
    with _ranks() as ranks:
        timed = _TimedGroup(ranks)
        host = celu.Host(bottom=bottom, train=data, test=data)
        trainer = HostTrainer("host", host, job, ranks=ranks)
        dz_BD = torch.randn(BATCH, WIDTH) / BATCH
        for round_ in range(STEPS + WARM_UP):
            if round_ == WARM_UP:
                timed.seconds, cpu_s, started = 0.0, time.process_time(), time.monotonic()
            _step(trainer, round_, dz_BD if ranks.is_first else None)
        found = {
            "cpu_s": (time.process_time() - cpu_s) / STEPS,
            "hub_s": timed.seconds / STEPS if isinstance(ranks, Group) else 0.0,
            "seconds": (time.monotonic() - started) / STEPS,
        }
        trainer.close()
    (out / f"{ranks.own.start}.json").write_text(json.dumps(found))


def _step(trainer: HostTrainer, round_: int, dz_BD: Tensor | None) -> None:
    digest = trainer.compute_activation(round_).row_digest
    trainer.update(round_, Message(Kind.DERIVATIVE, round_, tensor=dz_BD, row_digest=digest))


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
