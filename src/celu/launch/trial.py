"""One batch of a party's rows through its models, with made-up messages in place of its peers'.

It uses the trainers of a real run, so what fails here would fail there. The weights are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from celu.config.job import Job
from celu.data.dataset import Batch
from celu.engine.coding import Coding
from celu.engine.device import current, device_of
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.engine.randomness import seed_step
from celu.engine.twin import PREFIX
from celu.launch.recording import modules_of
from celu.metrics.names import HIGHER_IS_BETTER, UNDEFINED_FOR_SOME_LABELS
from celu.party import Guest, Host
from celu.ranks.slices import ONE, Slices
from celu.transport.message import Kind, Message
from celu.transport.wire import as_sendable

_ROUND = 0
# The names of tensors in a checkpoint start so; those of a guest's twin count, too.
_WEIGHTS, _OPTIMIZERS = (
    tuple(f"{who}{what}." for who in ("", PREFIX)) for what in ("weights", "optimizer")
)


@dataclass(frozen=True)
class Trial:
    """What one batch showed: the loss and metrics at the guest, and the bytes of tensors."""

    loss: float | None
    metrics: tuple[str, ...]
    weight_bytes: int
    optimizer_bytes: int
    gradient_bytes: int
    batch_bytes: int
    graph_bytes: int  # what autograd retains for the backward pass


def try_party(
    name: str, party: Guest | Host, job: Job, test_rows: int, slices: Slices = ONE
) -> Trial:
    """Forward, loss, backward, update, a local step and an evaluation on a batch each.

    Raises ModelError, NonFiniteError or ConfigError, as a run would.
    """
    modules = [module for module in modules_of(party).values() if module is not None]
    with current(device_of(modules)):
        return _try(name, party, job, test_rows, slices)


def _try(name: str, party: Guest | Host, job: Job, test_rows: int, slices: Slices) -> Trial:
    trainer: GuestTrainer | HostTrainer
    if isinstance(party, Guest):
        trainer = GuestTrainer(name, party, job, ranks=slices)
    else:
        trainer = HostTrainer(name, party, job, ranks=slices)
    rows = min(test_rows, job.batch_size)
    with closing(trainer):
        batch = trainer.loader.batch(_ROUND)
        with _counting_graph(modules_of(party)) as graph:
            if isinstance(trainer, GuestTrainer):
                loss: float | None = _try_guest(trainer, job, batch)
            else:
                loss = None
                _try_host(trainer, job, name)
        for _ in range(trainer.workset.table.W):  # the policy may skip the first few
            if trainer.workset.local_steps == 0:
                trainer.local_step()
        metrics: tuple[str, ...] = ()
        if isinstance(trainer, GuestTrainer) and rows:
            metrics = _try_evaluation(trainer, party, job, rows)
        elif isinstance(trainer, HostTrainer) and rows:
            as_sendable(trainer.compute_test_activation("test", _ROUND, 0, 0, rows))
        _, tensors = trainer.state_dict()
    return Trial(
        loss,
        metrics,
        _num_bytes(t for n, t in tensors.items() if n.startswith(_WEIGHTS)),
        _num_bytes(t for n, t in tensors.items() if n.startswith(_OPTIMIZERS)),
        _num_bytes(_dense_parameters(modules_of(party))),
        _num_bytes([*batch.inputs.values(), *([] if batch.labels is None else [batch.labels])]),
        graph.num_bytes,
    )


def _try_guest(trainer: GuestTrainer, job: Job, batch: Batch) -> float:
    activations = _made_up(Kind.ACTIVATION, job, batch.row_digest, job.batch_size)
    loss, derivatives = trainer.compute_derivatives(_ROUND, activations)
    for derivative in derivatives:
        as_sendable(derivative)
    trainer.apply_update()
    return float(loss)


def _try_evaluation(
    trainer: GuestTrainer, guest: Guest | Host, job: Job, rows: int
) -> tuple[str, ...]:
    digest = guest.test.take(slice(0, rows)).row_digest
    activations = _made_up(Kind.TEST_ACTIVATION, job, digest, rows)
    metrics = trainer.metrics("test", [trainer.score("test", 0, rows, activations)]).reported
    # Few rows may have one class, for which some metrics are undefined, perhaps the user's own.
    always = HIGHER_IS_BETTER.keys() - UNDEFINED_FOR_SOME_LABELS
    defined = {name: value for name, value in metrics.items() if name in always}
    trainer.evaluator.check(defined, _ROUND)
    return tuple(metrics)


def _try_host(trainer: HostTrainer, job: Job, name: str) -> None:
    sent = trainer.compute_activation(_ROUND)
    as_sendable(sent)
    derivatives = _made_up(Kind.DERIVATIVE, job, sent.row_digest, job.batch_size, [name])
    trainer.update(_ROUND, derivatives[0])


def _made_up(
    kind: Kind, job: Job, row_digest: bytes, rows: int, hosts: list[str] | None = None
) -> list[Message]:
    """A message of normal random numbers for each host, of the contract's width and codec."""
    seed_step(job.seed, "trial", _ROUND, int(kind))
    messages = []
    for host in job.hosts if hosts is None else hosts:
        tensor = torch.randn(rows, job.hosts[host].z_width)
        if kind is Kind.DERIVATIVE:
            tensor /= rows  # the loss is a mean over the rows
        message = Message(kind, _ROUND, tensor=tensor, row_digest=row_digest)
        messages.append(Coding(job, host).pack(message))
    return messages


def _num_bytes(tensors: Iterator[Tensor] | list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _dense_parameters(modules: Mapping[str, nn.Module | None]) -> list[Tensor]:
    """The parameters whose gradients are as large as they are."""
    layers = [layer for module in modules.values() if module for layer in module.modules()]
    sparse = {
        id(layer.weight)
        for layer in layers
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse
    }
    dense = {id(p): p for layer in layers for p in layer.parameters(recurse=False)}
    return [p for p in dense.values() if p.requires_grad and id(p) not in sparse]


class _Graph:
    """The tensors that autograd has saved, each storage once, without the weights."""

    def __init__(self, weights: set[int]) -> None:
        self._weights = weights
        self._storages: dict[int, int] = {}

    def save(self, tensor: Tensor) -> Tensor:
        if not tensor.is_sparse:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._weights:
                self._storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def num_bytes(self) -> int:
        return sum(self._storages.values())


@contextmanager
def _counting_graph(modules: Mapping[str, nn.Module | None]) -> Iterator[_Graph]:
    weights = [p for module in modules.values() if module for p in module.parameters()]
    graph = _Graph({weight.untyped_storage().data_ptr() for weight in weights})
    with torch.autograd.graph.saved_tensors_hooks(graph.save, lambda tensor: tensor):
        yield graph
