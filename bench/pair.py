"""A guest and its hosts in memory, with the paper's models and optimizers: for simulations.

Two regimes: the paper's optimizer (AdaGrad with an initial accumulator of 0.1), and the strongest
one that we know (an initial accumulator of 0). Vanilla's learning rate is tuned in each.

The paper's shape is a batch of 4096 and a Z of 256: 4 MiB a message, 112 ms at 300 Mbps, while a
GPU computes for a few milliseconds. On a CPU a smaller shape stands in for it, scaled in
proportion. The link is slower by the factor by which a message is smaller, so that a message still
takes 112 ms; its delay stays. And the simulated parties compute faster than this machine, so that a
round of vanilla takes as long as with the paper's shape on a GPU (`GPU_ROUND_S`).
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

LINK_PROFILE = "wan-300"
PAPER_BYTES = 4096 * 256 * 4
# Computing time of both parties in a round of vanilla with the paper's shape, on one H200.
GPU_ROUND_S = 0.0055
TEST_ROWS = 20_000
MAX_CODES = 20_000  # of a field of the synthetic clicks
VANILLA = celu.Method(R=1)
_CALIBRATION_ROUNDS = 30

Model = Literal["wdl", "dssm"]
Datasets = tuple[celu.Dataset, celu.Dataset]  # train, test
Pair = dict[str, Datasets]  # "guest", and one or more hosts
Timer = Callable[[], float]


@dataclass(frozen=True)
class Shape:
    """The sizes of the model and the data, and the number of rounds."""

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
    def link(self) -> LinkSettings:
        """The link on which a message takes as long as the paper's message on LINK_PROFILE."""
        real = PROFILES[LINK_PROFILE]
        mbps = real.mbps * self.batch * self.width * 4 / PAPER_BYTES
        return real.model_copy(update={"mbps": mbps})


@dataclass(frozen=True)
class Regime:
    """AdaGrad's initial accumulator, and the top model and initialization used with it."""

    name: str
    accumulator: float
    top: tuple[int, ...]
    init_std: float

    def optimizer(self, lr: float) -> celu.Optimizer:
        """AdaGrad with this regime's accumulator and a learning rate."""
        return celu.Optimizer(name="adagrad", lr=lr, initial_accumulator=self.accumulator)


REGIMES = {
    "paper": Regime("paper", 0.1, (), 0.1),
    "strong": Regime("strong", 0.0, (64,), 0.03),
}


def open_pair(folder: Path, device: str) -> Pair:
    """The datasets of the stores `folder`/guest/store and `folder`/host/store, on a device."""
    pair = {}
    for name in ("guest", "host"):
        store = celu.open_store(folder / name / "store")
        rows = celu.open_datasets(store, store.inputs(), label=name == "guest")
        pair[name] = rows.train.to(torch.device(device)), rows.test.to(torch.device(device))
    return pair


def split_hosts(pair: Pair, num: int) -> Pair:
    """The same rows with the host's columns split between `num` hosts, in order."""
    if num == 1:
        return pair
    train, test = pair["host"]
    hosts = {f"host{i + 1}": (_columns(train, i, num), _columns(test, i, num)) for i in range(num)}
    return {"guest": pair["guest"], **hosts}


def _columns(dataset: celu.Dataset, index: int, num: int) -> celu.Dataset:
    """One of `num` shares of every input's columns."""

    def cut(columns: int) -> slice:
        return slice(index * columns // num, (index + 1) * columns // num)

    inputs = {name: tensor[:, cut(tensor.shape[1])] for name, tensor in dataset.inputs.items()}
    sizes = {name: sizes[cut(len(sizes))] for name, sizes in dataset.sizes.items()}
    return celu.Dataset(inputs, dataset.labels, sizes, dataset.tags)


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
    """The job of a pair. Without a codec, `auto` chooses one and other methods use float32."""
    hosts = [name for name in pair if name != "guest"]
    more: dict[str, Any] = {} if codec is None else {"codec": codec}
    return celu.Job(
        seed=seed,
        rounds=rounds or shape.rounds,
        batch_size=shape.batch,
        hosts=dict.fromkeys(hosts, celu.HostTerms(z_width=shape.width)),
        method=method,
        optimizer=optimizer,
        evaluation=celu.Evaluation(every=shape.every, rows=shape.test_rows, target=target),
        **more,
    )


def build_parties(
    pair: Pair, shape: Shape, regime: Regime, seed: int
) -> tuple[celu.Guest, dict[str, celu.Host]]:
    """All parties with their datasets and new modules, which depend only on the seed."""
    torch.manual_seed(seed)

    def tower(datasets: Datasets) -> nn.Module:
        columns = {name: t.shape[1] for name, t in datasets[0].inputs.items()}
        return Tower(
            shape.width,
            columns,
            datasets[0].sizes,
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
    """Train new modules; the options are those of `celu.simulate`."""
    guest, hosts = build_parties(pair, shape, regime, job.seed)
    return celu.simulate(job, guest, hosts, **options)


def timer_for(shape: Shape) -> Timer:
    """The timer for computing: CPU time of the thread on a CPU, which other processes share."""
    return time.thread_time if shape.device == "cpu" else time.perf_counter


def measure_compute_s(pair: Pair, shape: Shape) -> float:
    """Computing time of both parties in a round of vanilla, measured over an instant link."""
    optimizer = celu.Optimizer(lr=0.01)
    job = pair_job(pair, shape, 1, optimizer, rounds=_CALIBRATION_ROUNDS)
    instant = LinkSettings(mbps=1e9)
    seconds: list[float] = []

    def record(event: celu.Event) -> None:
        if isinstance(event, RoundDone):
            seconds.append(event.seconds)

    regime = REGIMES["paper"]
    options: dict[str, Any] = {"link": instant, "timer": timer_for(shape)}
    simulate_pair(pair, shape, regime, job, callbacks=[record], **options)
    half = len(seconds) // 2
    return (seconds[-1] - seconds[half]) / (len(seconds) - 1 - half)
