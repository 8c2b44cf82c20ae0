"""`scripts/bench ranks`: what it costs and brings to run a party on several ranks.

Work is CPU time of a step, summed over all ranks, over that of one process. Processes that share
caches and memory take more CPU time, whatever they compute. So one process is measured among as
many copies of itself as there are ranks, in turns with them; the same over one process alone is
another figure. The ranks are real processes that torchrun starts. Each makes the steps of a host
with a heavy bottom (Z, and the update from dZ); the guest's part is left out, so that nothing else
is timed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import celu
from bench.report import BenchResult, Log
from celu.engine.host_trainer import HostTrainer
from celu.engine.state_dict import OPTIMIZER
from celu.launch.memory import retain_freed_memory
from celu.models.tower import Tower, new_embedding
from celu.ranks import embedding
from celu.ranks.embedding import new_sharded
from celu.ranks.group import Group, joined
from celu.ranks.owners import look_up
from celu.ranks.slices import ONE, Slices
from celu.transport.message import Kind, Message

# Tables of 2.1 million rows, 133 MB, and as much again of the optimizer: small beside those that
# need sharding, but what a step does depends on the batch and not on the table.
BATCH, WIDTH, CODES, FIELDS, EMBEDDING = 8192, 128, 130_000, 16, 16
HIDDEN = (960, 960)  # activations below the size that glibc maps anew for every step
_SKEW = 4.0  # a few ids of a field are in most rows, as in clicks
STEPS, WARM_UP = 8, 3
MAX_DELAYED = 0.1  # of the wall time of a measurement, waiting for a core
_VARIANTS = ((2, True), (4, True), (2, False), (4, False))  # ranks, with sharded tables
_COPY, _COPIES = "BENCH_COPY", "BENCH_COPIES"
_TIMEOUT_S = 600.0


def bench_ranks(log: Log, turns: int = 5, steps: int = STEPS) -> BenchResult:
    """The work of two and four ranks over that of one, the cost of the hub, and the speed-up."""
    result = BenchResult("ranks", seeds=[1])
    figures: dict[str, list[float]] = {}
    for turn in range(turns):
        one = _measure(steps, 1)
        for size, is_sharded in _VARIANTS if turn % 2 else reversed(_VARIANTS):
            measured = [
                partial(_measure, steps, size, is_sharded=is_sharded),
                partial(_measure, steps, 1, copies=size),
            ]
            if turn % 2:  # neither is always the first of a pair
                copies, found = (measure() for measure in reversed(measured))
            else:
                found, copies = (measure() for measure in measured)
            figure = f"rank_work_{size}{'' if is_sharded else '_replicated'}"
            # All ranks together do the work of one process; each copy does that much.
            ratio = found["cpu_s"] / (copies["cpu_s"] / size)
            figures.setdefault(figure, []).append(ratio)
            over_idle = found["cpu_s"] / one["cpu_s"]
            figures.setdefault(f"{figure}_over_idle", []).append(over_idle)
            if is_sharded:
                for name in ("hub", "lookup"):
                    share = found[f"{name}_s"] / found["cpu_s"]
                    figures.setdefault(f"{name}_cost_{size}", []).append(share)
                table_bytes = found["table_bytes"] / one["table_bytes"]
                figures.setdefault(f"table_bytes_a_rank_{size}", []).append(table_bytes)
            if is_sharded and size == 2 and max(one["delayed"], found["delayed"]) <= MAX_DELAYED:
                figures.setdefault("ranks_speedup", []).append(one["seconds"] / found["seconds"])
            row = {"ranks": size, "sharded": is_sharded, "CPU over one process": ratio, **found}
            result.rows.append(row)
            log(", ".join(f"{name} {value:.3f}" for name, value in row.items()))
    result.figures |= {name: round(median(values), 4) for name, values in figures.items()}
    costs = {size: median(figures[f"hub_cost_{size}"]) for size in (2, 4)}
    result.figures["hub_cost"] = round(max(costs.values()), 4)
    result.notes.append(
        f"A step of a host: Z and an update, batch {BATCH}, {FIELDS} fields of {CODES} codes with "
        f"embeddings of {EMBEDDING}, of which a few are in most rows, layers of {HIDDEN}; one "
        f"thread a rank; medians of {turns} turns. Work is CPU time of all ranks over that of one "
        "process, the mean of as many that run at the same time; over_idle: of one that runs "
        "alone. hub_cost: the share of CPU time, with gloo's threads, in collectives other than "
        "those of gradients and tables, of 2 or 4 ranks, the larger one; lookup_cost: in lookups. "
        "table_bytes: of tables and their optimizer state, at the rank with most. ranks_speedup: "
        "wall time of one process over that of two ranks, in "
        f"{len(figures.get('ranks_speedup', []))} turns in which neither waited for a core for "
        f"more than {MAX_DELAYED:.0%} of the time; left out if there was none."
    )
    return result


def _measure(
    steps: int, size: int, *, is_sharded: bool = False, copies: int = 1
) -> dict[str, float]:
    """CPU and wall seconds a step: of all processes together, and of the slowest.

    They are ranks, or as many copies of a process without ranks, which start their steps together.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "bench.ranks", scratch, str(steps)]
        if size > 1:
            launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
            command = [sys.executable, "-m", *launcher, "-m", *command[2:]]
        command += ["sharded"] if is_sharded else []
        running = []
        for copy in range(copies):
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            environment |= {_COPY: str(copy), _COPIES: str(copies)}
            running.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        codes = [process.wait(_TIMEOUT_S) for process in running]
        assert not any(codes), codes
        found = [json.loads(path.read_text()) for path in sorted(Path(scratch).glob("*.json"))]
    assert len(found) == size * copies
    return {
        **{name: sum(rank[name] for rank in found) for name in ("cpu_s", "hub_s", "lookup_s")},
        **{name: max(rank[name] for rank in found) for name in ("seconds", "table_bytes")},
        "delayed": max(rank["delayed_s"] / rank["seconds"] for rank in found),
    }


class _Timed:
    """Sums the CPU time of this process in some functions, which may call each other.

    That of other threads counts: gloo's, which do the work of a collective. So does that of the
    thread that reads batches, which does little.
    """

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*arguments: Any) -> Any:
            started, self._depth = time.process_time(), self._depth + 1
            try:
                return function(*arguments)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.process_time() - started

        return timed


@contextmanager
def _ranks() -> Iterator[Slices]:
    if "RANK" not in os.environ:
        yield ONE
        return
    with joined(_TIMEOUT_S) as group:
        yield group


def _work(out: Path, steps: int, *, is_sharded: bool) -> None:
    """Make the steps of one rank, and write what they took."""
    torch.set_num_threads(1)
    retain_freed_memory()  # as a run does
    torch.manual_seed(1)
    rows = BATCH * 4
    ids = (torch.rand(rows, FIELDS) ** _SKEW * CODES).long()
    data = celu.Dataset({"ids": ids}, sizes={"ids": (CODES,) * FIELDS})
    job = celu.Job(
        seed=1,
        batch_size=BATCH,
        rounds=steps + WARM_UP,
        guest="guest",
        hosts={"host": celu.HostTerms(z_width=WIDTH)},
        method=celu.Method(R=1),
    )
    with _ranks() as ranks:
        hub, lookups, new_table = _Timed(), _Timed(), new_embedding
        for name in ("share", "gather", "scatter"):
            setattr(ranks, name, hub.watch(getattr(ranks, name)))
        if is_sharded:
            assert isinstance(ranks, Group)
            new_table = partial(new_sharded, ranks)
            setattr(embedding, "look_up", lookups.watch(look_up))  # noqa: B010 - mypy
        bottom: nn.Module = Tower(
            WIDTH, {"ids": FIELDS}, data.sizes, EMBEDDING, HIDDEN, new_embedding=new_table
        )
        trainer = HostTrainer(
            "host", celu.Host(bottom=bottom, train=data, test=data), job, ranks=ranks
        )
        dz_BD = torch.randn(BATCH, WIDTH) / BATCH
        for round_ in range(steps + WARM_UP):
            if round_ == WARM_UP:
                _wait_for_copies(out)
                delayed_s = _delayed_s()
                hub.seconds = lookups.seconds = 0.0
                cpu_s, started = time.process_time(), time.monotonic()
            _step(trainer, round_, dz_BD if ranks.is_first else None)
        found = {
            "cpu_s": (time.process_time() - cpu_s) / steps,
            "hub_s": hub.seconds / steps if isinstance(ranks, Group) else 0.0,
            "lookup_s": lookups.seconds / steps,
            "seconds": (time.monotonic() - started) / steps,
            "delayed_s": (_delayed_s() - delayed_s) / steps,
            "table_bytes": _table_bytes(trainer),
        }
        trainer.close()
    (out / f"{os.environ[_COPY]}-{ranks.own.start}.json").write_text(json.dumps(found))


def _wait_for_copies(out: Path) -> None:
    """Wait until all copies of this process have warmed up."""
    (out / f"{os.environ[_COPY]}.ready").touch()
    deadline = time.monotonic() + _TIMEOUT_S
    while len(list(out.glob("*.ready"))) < int(os.environ[_COPIES]):
        if time.monotonic() > deadline:
            raise TimeoutError("the other copies of this process did not start")
        time.sleep(0.001)


def _delayed_s() -> float:
    """How long this thread was ready to run and had no core (Linux)."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) * 1e-9


def _table_bytes(trainer: HostTrainer) -> int:
    """The bytes of the embedding table and of its AdaGrad accumulators, at this rank."""
    _, tensors = trainer.state_dict()
    table = "weights.bottom.embeddings.ids.table.weight"
    shape = tensors[table].shape
    return sum(t.nbytes for n, t in tensors.items() if n == table or _is_state(n, t, shape))


def _is_state(name: str, tensor: Tensor, shape: torch.Size) -> bool:
    return name.startswith(OPTIMIZER) and tensor.shape == shape


def _step(trainer: HostTrainer, round_: int, dz_BD: Tensor | None) -> None:
    digest = trainer.compute_activation(round_).row_digest
    trainer.update(round_, Message(Kind.DERIVATIVE, round_, tensor=dz_BD, row_digest=digest))


if __name__ == "__main__":
    _work(Path(sys.argv[1]), int(sys.argv[2]), is_sharded="sharded" in sys.argv[3:])
