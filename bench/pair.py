"""A guest and its hosts in memory, with the paper's models and optimizers: for simulations.

Two regimes, each with rates on which vanilla is tuned: the paper's optimizer (AdaGrad from an
accumulator of 0.1), and the strongest one known (from 0).

The paper's shape is a batch of 4096 and Z of 256: 4 MiB a message, 112 ms at 300 Mbps, beside which
a GPU computes for a few milliseconds. On a CPU a smaller shape stands for it, with everything in
proportion. The line is slower by as much as a message is smaller, so that it takes those 112 ms;
its delay stays. And parties compute as much faster than they do here as brings vanilla's computing
to what it was with the paper's shape on a GPU (`GPU_ROUND_S`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import celu
from celu.config.link import PROFILES, LinkSettings
from celu.events import RoundDone
from celu.models.tops import InnerProductTop, WideDeepTop
from celu.models.tower import Tower

LINE = "wan-300"
PAPER_BYTES = 4096 * 256 * 4
# What both parties compute in a round of vanilla with the paper's shape, on one H200.
GPU_ROUND_S = 0.0055
TEST_ROWS = 20_000
MAX_CODES = 20_000  # of a made-up field
VANILLA = celu.Method(R=1)
_CALIBRATION_ROUNDS = 30

Model = Literal["wdl", "dssm"]
Tables = tuple[celu.Dataset, celu.Dataset]  # to train on, to test on
Pair = dict[str, Tables]  # "guest", and one or more hosts
Timer = Callable[[], float]


@dataclass(frozen=True)
class Shape:
    """What is trained, and for how long."""

    batch: int
    width: int
    embedding: int
    hidden: tuple[int, ...]
    rows: int
    rounds: int
    every: int
    device: str = "cpu"
    model: Model = "wdl"
    test_rows: int = TEST_ROWS

    @property
    def line(self) -> LinkSettings:
        """The line on which a message takes as long as the paper's on the real one."""
        real = PROFILES[LINE]
        mbps = real.mbps * self.batch * self.width * 4 / PAPER_BYTES
        return real.model_copy(update={"mbps": mbps})


@dataclass(frozen=True)
class Regime:
    """An optimizer's starting point, and the model that goes with it."""

    name: str
    accumulator: float
    top: tuple[int, ...]
    init_std: float

    def optimizer(self, lr: float) -> celu.Optimizer:
        """AdaGrad from that point, at a rate."""
        return celu.Optimizer(name="adagrad", lr=lr, initial_accumulator=self.accumulator)


REGIMES = {
    "paper": Regime("paper", 0.1, (), 0.1),
    "strong": Regime("strong", 0.0, (64,), 0.03),
}


def open_pair(folder: Path, device: str) -> Pair:
    """The rows of the stores `folder`/guest/store and `folder`/host/store, on a device."""
    pair = {}
    for name in ("guest", "host"):
        store = celu.open_store(folder / name / "store")
        rows = celu.open_datasets(store, store.inputs(), label=name == "guest")
        train, test = (table.to(torch.device(device)) for table in (rows.train, rows.test))
        pair[name] = train, test
    return pair


def with_hosts(pair: Pair, num: int) -> Pair:
    """The same rows with the host's columns dealt out to so many hosts, in order."""
    if num == 1:
        return pair
    train, test = pair["host"]
    dealt = {f"host{i + 1}": (_part(train, i, num), _part(test, i, num)) for i in range(num)}
    return {"guest": pair["guest"], **dealt}


def _part(table: celu.Dataset, index: int, num: int) -> celu.Dataset:
    """One of `num` shares of every input's columns."""

    def cut(columns: int) -> slice:
        return slice(index * columns // num, (index + 1) * columns // num)

    inputs = {name: tensor[:, cut(tensor.shape[1])] for name, tensor in table.inputs.items()}
    sizes = {name: sizes[cut(len(sizes))] for name, sizes in table.sizes.items()}
    return celu.Dataset(inputs, table.labels, sizes, table.tags)


def pair_job(
    pair: Pair,
    shape: Shape,
    seed: int,
    optimizer: celu.Optimizer,
    method: celu.Method = VANILLA,
    *,
    rounds: int = 0,
    target: float | None = None,
    codec: str | None = None,
) -> celu.Job:
    """The contract of a pair; a codec that is None is left to the method, or is float32."""
    hosts = [name for name in pair if name != "guest"]
    written: dict[str, Any] = {} if codec is None else {"codec": codec}
    return celu.Job(
        seed=seed,
        rounds=rounds or shape.rounds,
        batch_size=shape.batch,
        hosts={name: celu.HostTerms(z_width=shape.width) for name in hosts},
        method=method,
        optimizer=optimizer,
        evaluation=celu.Evaluation(every=shape.every, rows=shape.test_rows, target=target),
        **written,
    )


def build_parties(
    pair: Pair, shape: Shape, regime: Regime, seed: int
) -> tuple[celu.Guest, dict[str, celu.Host]]:
    """Everybody's modules, a function of the seed, with their rows."""
    torch.manual_seed(seed)

    def tower(tables: Tables) -> nn.Module:
        columns = {name: t.shape[1] for name, t in tables[0].inputs.items()}
        return Tower(
            shape.width,
            columns,
            tables[0].sizes,
            embedding_dim=shape.embedding,
            hidden=shape.hidden,
            init_std=regime.init_std,
            relu_z=shape.model == "wdl",
        ).to(shape.device)

    widths = [shape.width] * len(pair)
    top: nn.Module = InnerProductTop(widths)
    if shape.model == "wdl":
        top = WideDeepTop(widths, hidden=regime.top, init_std=regime.init_std)
    train, test = pair["guest"]
    guest = celu.Guest(
        top=top.to(shape.device),
        loss="binary",
        train=train,
        test=test,
        bottom=tower(pair["guest"]),
    )
    hosts = {
        name: celu.Host(bottom=tower(t), train=t[0], test=t[1])
        for name, t in pair.items()
        if name != "guest"
    }
    return guest, hosts


def simulate_pair(
    pair: Pair, shape: Shape, regime: Regime, job: celu.Job, **options: Any
) -> celu.Result:
    """Train new modules under a contract; the options are those of `celu.simulate`."""
    guest, hosts = build_parties(pair, shape, regime, job.seed)
    return celu.simulate(job, guest, hosts, **options)


def timer_of(shape: Shape) -> Timer:
    """By which computing is timed."""
    # On a CPU not by the clock on the wall: others may be at work on this machine.
    return time.thread_time if shape.device == "cpu" else time.perf_counter


def compute_s(pair: Pair, shape: Shape) -> float:
    """What both parties compute in a round of vanilla: on a line that takes no time."""
    optimizer = celu.Optimizer(lr=0.01)
    job = pair_job(pair, shape, 1, optimizer, rounds=_CALIBRATION_ROUNDS)
    at_once = LinkSettings(mbps=1e9)
    seconds: list[float] = []

    def note(event: celu.Event) -> None:
        if isinstance(event, RoundDone):
            seconds.append(event.seconds)

    regime = REGIMES["paper"]
    simulate_pair(pair, shape, regime, job, callbacks=[note], link=at_once, timer=timer_of(shape))
    half = len(seconds) // 2
    return (seconds[-1] - seconds[half]) / (len(seconds) - 1 - half)
