"""Small federations for tests, and three ways to train one: a plain loop, in memory, over gRPC."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import celu
from celu.certs import make_authority, make_party
from celu.data.order import BatchOrder
from celu.engine.optimizer import Optimizer
from celu.events import ignore
from celu.models.members import MemberLoss
from celu.models.residual import ResidualTop, ResidualTower
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower
from celu.session import guest_session, host_session
from celu.transport.carrier import Route
from celu.transport.connect import Endpoint, open_links
from celu.transport.link import run_blocking

ROWS, BATCH = 192, 32
# Takes labels as they are: the golden trajectories are those of an unscaled number.
UNSCALED = replace(celu.LOSSES["regression"], labels=None)
OUTPUTS = {"binary": 1, "multiclass": 3, "regression": 1}
# Those that evaluations had when the checkpoints in tests/golden were recorded.
METRICS = {"binary": "auc", "multiclass": "accuracy", "regression": "rmse"}


@dataclass
class Federation:
    """A guest and its hosts, with the contract they hold."""

    job: celu.Job
    guest: celu.Guest
    hosts: dict[str, celu.Host]

    def modules(self) -> dict[str, nn.Module]:
        named: dict[str, nn.Module | None] = {"top": self.guest.top, "bottom": self.guest.bottom}
        named |= {f"{name}.bottom": host.bottom for name, host in self.hosts.items()}
        return {name: module for name, module in named.items() if module is not None}

    def modules_of_parties(self) -> dict[str, list[nn.Module]]:
        own = [m for m in (self.guest.bottom, self.guest.top) if m is not None]
        return {self.job.guest: own} | {n: [host.bottom] for n, host in self.hosts.items()}

    def weights(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": tensor.clone()
            for name, module in self.modules().items()
            for key, tensor in module.state_dict().items()
        }


def federation(
    *,
    hosts: dict[str, int] | None = None,
    loss: str = "binary",
    guest_has_features: bool = True,
    init_std: float = 0.2,
    is_residual: bool = False,
    dropout: float = 0.1,
    **job: Any,
) -> Federation:
    """Seeded rows and modules; `hosts` maps names to widths of Z; `job` are fields of the Job.

    Modules are those of "wdl", or of "resnet" if it `is_residual`; those have `dropout`.
    """
    widths = {"host": 6} if hosts is None else hosts
    random = torch.Generator().manual_seed(7)
    numbers = {n: torch.randn(ROWS, 4, generator=random) for n in ["guest", *widths]}
    ids = {n: torch.randint(0, 20, (ROWS, 3), generator=random) for n in ["guest", *widths]}
    signal = sum(
        x[:, 0] + 0.5 * (i[:, 0] % 3) for x, i in zip(numbers.values(), ids.values(), strict=True)
    )
    labels = {
        "binary": (signal > signal.median()).float(),
        "multiclass": torch.bucketize(signal, signal.quantile(torch.tensor([0.33, 0.66]))),
        "regression": signal,
    }[loss]
    columns, sizes = {"numbers": 4, "ids": 3}, {"ids": (20, 20, 20)}

    def dataset(name: str, labels: Tensor | None = None) -> celu.Dataset:
        return celu.Dataset({"numbers": numbers[name], "ids": ids[name]}, labels, sizes)

    def tower(width: int, name: str) -> nn.Module:
        if is_residual:
            rows = dataset(name).examples()
            small: dict[str, Any] = {"bins": 4, "members": 2, "width": 8, "dropout": dropout}
            return ResidualTower(width, columns, sizes, rows, **small)
        return Tower(width, columns, sizes, embedding_dim=4, hidden=(8,), init_std=init_std)

    torch.manual_seed(3)
    own_width = 4 if is_residual else 5
    own = [own_width] if guest_has_features else []
    z_widths = [*own, *widths.values()]
    top: nn.Module = (
        ResidualTop(z_widths, OUTPUTS[loss], members=2, width=8, dropout=dropout)
        if is_residual
        else WideDeepTop(z_widths, OUTPUTS[loss], hidden=(7,), init_std=init_std)
    )
    guest_dataset = dataset("guest", labels)
    if not guest_has_features:
        guest_dataset = celu.Dataset({}, labels)
    guest = celu.Guest(
        top=top,
        loss=UNSCALED if loss == "regression" else celu.LOSSES[loss],
        train=guest_dataset,
        test=guest_dataset,
        bottom=tower(own_width, "guest") if guest_has_features else None,
        metrics=METRICS[loss],
    )
    defaults: dict[str, Any] = {"rounds": 14, "batch_size": BATCH}
    terms = {name: celu.HostTerms(z_width=width) for name, width in widths.items()}
    evaluation = celu.Evaluation(every=5, metric="loss")
    return Federation(
        celu.Job(**{**defaults, "hosts": terms, "evaluation": evaluation, **job}),
        guest,
        {
            name: celu.Host(bottom=tower(width, name), train=dataset(name), test=dataset(name))
            for name, width in widths.items()
        },
    )


def with_weights(
    fed: Federation, weights: Tensor | None, class_weights: Any = None, test: Tensor | None = None
) -> Federation:
    """The same federation, whose guest has weights of training rows, of classes, of test rows."""
    guest = fed.guest

    def weighted(rows: celu.Dataset, weights: Tensor | None) -> celu.Dataset:
        return celu.Dataset(rows.inputs, rows.labels, rows.sizes, rows.tags, weights=weights)

    return Federation(
        fed.job,
        celu.Guest(
            top=guest.top,
            loss=guest.loss,
            train=weighted(guest.train, weights),
            test=weighted(guest.test, test),
            bottom=guest.bottom,
            class_weights=class_weights,
        ),
        fed.hosts,
    )


def with_validation(fed: Federation) -> Federation:
    """The same federation, with the last rows of each party as validation and test rows."""

    def cut(dataset: celu.Dataset, start: int, stop: int) -> celu.Dataset:
        labels = None if dataset.labels is None else dataset.labels[start:stop]
        inputs = {name: tensor[start:stop] for name, tensor in dataset.inputs.items()}
        return celu.Dataset(inputs, labels, dataset.sizes)

    def parts(dataset: celu.Dataset) -> dict[str, celu.Dataset]:
        names = {"train": (0, 96), "validation": (96, 146), "test": (146, ROWS)}
        return {name: cut(dataset, *rows) for name, rows in names.items()}

    guest = celu.Guest(
        top=fed.guest.top,
        loss=fed.guest.loss,
        bottom=fed.guest.bottom,
        **parts(fed.guest.train),
    )
    hosts = {
        name: celu.Host(bottom=host.bottom, **parts(host.train)) for name, host in fed.hosts.items()
    }
    return Federation(fed.job, guest, hosts)


def train_in_plain_loop(fed: Federation) -> dict[str, Tensor]:
    """The reference: the same model in one process, as a plain training loop."""
    fed = copy.deepcopy(fed)
    order = BatchOrder(fed.job.seed, ROWS, fed.job.batch_size)
    num_rounds = fed.job.num_rounds(ROWS // fed.job.batch_size)
    optimizers = [
        Optimizer(modules, fed.job.optimizer, party, num_rounds)
        for party, modules in fed.modules_of_parties().items()
    ]
    for round_ in range(num_rounds):
        rows = order.rows(round_)
        guest = fed.guest.train.take(rows)
        z = [] if fed.guest.bottom is None else [fed.guest.bottom(**guest.inputs)]
        z += [host.bottom(**host.train.take(rows).inputs) for host in fed.hosts.values()]
        assert guest.labels is not None
        loss = MemberLoss(fed.guest.loss, fed.guest.top)
        loss.per_instance(fed.guest.top(*z), guest.labels).mean().backward()
        for optimizer in optimizers:
            optimizer.set_round(round_)
            optimizer.step()
    return fed.weights()


def train_in_memory(fed: Federation) -> dict[str, Tensor]:
    fed = copy.deepcopy(fed)
    celu.simulate(fed.job, fed.guest, fed.hosts)
    return fed.weights()


def train_over_grpc(
    fed: Federation,
    folder: Path,
    *,
    host_listens: bool = False,
    result: Callable[[celu.Result], None] = lambda result: None,
    listen: str = "127.0.0.1:0",
    route: Callable[[str], Route] = Route,
    **more: Any,
) -> dict[str, Tensor]:
    """Each party in its own thread, over mutual TLS on loopback.

    `route` returns the route to the address that a party listens on; `more` are fields of each
    Endpoint, such as another carrier.
    """
    fed = copy.deepcopy(fed)
    names = [fed.job.guest, *fed.hosts]
    for name in names:
        if not (folder / name).exists():
            make_authority(folder / name, name)
            make_party(folder / name, name)

    def keys(name: str, peers: list[str]) -> tuple[Path, Path, dict[str, Path]]:
        authorities = {peer: folder / peer / "ca.pem" for peer in peers}
        return folder / name / f"{name}.pem", folder / name / f"{name}.key", authorities

    ports: dict[str, int] = {}
    bound = threading.Condition()

    def listening(name: str) -> Callable[[int], None]:
        def notify(port: int) -> None:
            with bound:
                ports[name] = port
                bound.notify_all()

        return notify

    def address(name: str) -> str:
        with bound:
            assert bound.wait_for(lambda: name in ports, timeout=600)
        return f"127.0.0.1:{ports[name]}"

    def endpoint(name: str, peers: list[str], listens: bool) -> Endpoint:
        return Endpoint(
            name=name,
            listen=listen if listens else None,
            accept=tuple(peers) if listens else (),
            connect={} if listens else {peer: route(address(peer)) for peer in peers},
            keys=keys(name, peers),
            connect_s=600,
            deadline_s=600,
            **(more if listens else {**more, "behind_gateway": False}),
        )

    failures: list[BaseException] = []

    def run_host(name: str) -> None:
        try:
            with open_links(
                endpoint(name, [fed.job.guest], host_listens), listening(name)
            ) as links:
                session = host_session(name, fed.hosts[name], fed.job, links[fed.job.guest], ignore)
                run_blocking(session)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run_host, args=(name,)) for name in fed.hosts]
    for thread in threads:
        thread.start()
    try:
        own = endpoint(fed.job.guest, list(fed.hosts), not host_listens)
        with open_links(own, listening(fed.job.guest)) as links:
            session = guest_session(fed.job.guest, fed.guest, fed.job, links, ignore)
            result(run_blocking(session))
    finally:
        for thread in threads:
            thread.join(600)
    assert not failures, failures
    return fed.weights()


def assert_same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different
