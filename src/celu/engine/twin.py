"""The guest's twin: a copy of its models that learns from randomized labels, and answers hosts.

With `privacy.label_epsilon`, everything that hosts can see follows from the twin: dZ, curvature,
when training stops, which weights are the best, what `auto` chooses, whether NaN ends the run. The
guest's own models learn from the true labels, and send nothing. So what hosts receive, over any
number of rounds, epochs and hosts, is a function of the randomized labels alone.

The twin uses a batch once, at its exchange. Local steps are those of the guest's own models.
Weights of rows and classes, which may depend on true labels, do not apply to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from celu.config.job import Job
from celu.config.schema import HeldOut
from celu.data.batch_loader import BatchLoader
from celu.data.dataset import Batch, Dataset
from celu.data.order import BatchOrder
from celu.engine.best import copy_weights
from celu.engine.checkpoint_tensors import CheckpointTensors
from celu.engine.graphs import NO_GRAPHS, GraphOptions, Graphs
from celu.engine.guest_model import GuestModel
from celu.engine.optimizer import Optimizer, flatten_state
from celu.engine.randomness import seed_step
from celu.engine.scores import Scores
from celu.engine.state import TwinState
from celu.engine.state_dict import OPTIMIZER, TwinMetadata, parameter_names, sharded_rows
from celu.engine.twin_metrics import CORRECTED, corrected_metrics
from celu.errors import CheckpointError, ConfigError
from celu.label_map import LabelMap
from celu.metrics.names import METRICS
from celu.metrics.own import Metric, undefined_on_failure
from celu.models.fit_labels import check_both_classes, check_output
from celu.models.members import MemberLoss
from celu.models.user_code import call_loss, top_of
from celu.party import Guest
from celu.privacy.ledger import read_label_key
from celu.privacy.randomized_response import RandomizedResponse, digest_labels
from celu.privacy.secret_key import LABELS
from celu.ranks.slices import ONE, Slices
from celu.ranks.whole import digest_whole

PREFIX = "twin."  # of the tensors in a checkpoint
_MAX_OWN_CLASSES = 100  # of a loss that is not built in: it is called for each class


@dataclass(frozen=True)
class Answer:
    """What an exchange computes: the mean loss, the output, and what hosts receive."""

    loss: Tensor
    output: Tensor
    dz: list[Tensor]
    curvature: float


def check_label_privacy(guest: Guest, job: Job, *, decides: bool) -> None:
    """Raise ConfigError for what would reveal true labels, or has no unbiased estimate.

    `decides`: whether evaluations decide anything that hosts can see.
    """
    epsilon = "privacy.label_epsilon"
    loss = guest.loss
    if loss.labels == "regression":
        raise ConfigError(
            f"{epsilon}: expected labels that are classes, got a loss of numbers, whose labels "
            "cannot be randomized; remove it, or train on classes"
        )
    if loss.labels is None or loss.output not in ("binary", "multiclass"):
        raise ConfigError(
            f"{epsilon}: expected a loss that declares its classes, got one that does not; declare "
            'celu.Loss(..., output="binary", labels="binary"), or "multiclass"'
        )
    num_classes = len(guest.label_map.classes or ())
    is_built_in = loss.is_log_loss  # a user's own is called for each class
    if not is_built_in and num_classes > _MAX_OWN_CLASSES:
        raise ConfigError(
            f"{epsilon}: expected at most {_MAX_OWN_CLASSES} classes with a loss of your own, got "
            f"{num_classes:,}"
        )
    own = [metric.name for metric in guest.metrics or () if isinstance(metric, Metric)]
    metric = job.evaluation.metric
    if decides and metric in (*METRICS[loss.output], *own) and metric not in CORRECTED:
        raise ConfigError(
            f"evaluation.metric: expected one of {', '.join(CORRECTED)} with {epsilon}, got "
            f"{metric}: it decides what hosts see, and cannot be estimated from randomized labels"
        )


def without_failing_metrics(guest: Guest, warn: Callable[[str], None]) -> Guest:
    """The guest, whose own metrics are NaN where they fail: they depend on true labels."""
    if guest.metrics is None:
        return guest
    changed = copy.copy(guest)
    metrics = [
        undefined_on_failure(metric, warn) if isinstance(metric, Metric) else metric
        for metric in guest.metrics
    ]
    object.__setattr__(changed, "metrics", tuple(metrics))
    return changed


class Twin:
    """The models that learn from randomized labels, with their optimizer."""

    def __init__(
        self,
        own: GuestModel,
        guest: Guest,
        job: Job,
        device: torch.device,
        graphs: GraphOptions = NO_GRAPHS,
        ranks: Slices = ONE,
    ) -> None:
        """`own` is the guest's own model, before training. Raises ConfigError, DataError."""
        assert job.privacy.label_epsilon is not None
        bottom, top = copy.deepcopy((own.bottom, own.top))  # together: they may share weights
        self._model = replace(own, bottom=bottom, top=top)
        self._seed, self._guest, self._device = job.seed, guest, device
        self._ranks, self._batch_size = ranks, job.batch_size
        self._key = read_label_key(guest.label_key)
        classes = guest.label_map.classes or ()
        self._response = RandomizedResponse(job.privacy.label_epsilon, len(classes))
        self._digest = digest_labels(self._key, guest.labelled_rows, classes)
        self._loss = self._response.unbiased(guest.loss)
        self._of_members = MemberLoss(self._loss, top)
        parts = {"train": guest.train, "test": guest.test, "validation": guest.validation}
        self._labels = {p: self._randomize(p, d) for p, d in parts.items() if d is not None}
        for part in self._labels.keys() - {"train"}:
            labels, metric = self._labels[part][: job.evaluation.rows], job.evaluation.metric
            check_both_classes(LabelMap(), guest.loss, f"randomized {part}", labels, metric)
        order = BatchOrder(job.seed, guest.train.num_rows, job.batch_size, job.order)
        own_rows = None if len(ranks.own) == ranks.size else ranks.own_rows(job.batch_size)
        self._loader = BatchLoader(Dataset({}, self._labels["train"]), order, device, own_rows)
        num_rounds = job.num_rounds(guest.train.num_rows // job.batch_size)
        modules = self._model.modules.values()
        self._optimizer = Optimizer(modules, job.optimizer, own.party, num_rounds)
        self._graphs = Graphs(modules, self._optimizer, graphs)
        self._gradients = ranks.gradients(self._optimizer.parameters)

    def _randomize(self, part: str, rows: Dataset) -> Tensor:
        assert rows.labels is not None  # checked before the run starts
        codes = self._guest.label_map.codes(rows.labels)
        return self._response.randomize(rows, part, codes, self._key, self._digest)

    def close(self) -> None:
        """Stop reading labels."""
        self._loader.close()

    def set_round(self, round_: int) -> None:
        """Use the learning rate of this round."""
        self._optimizer.set_round(round_)

    def answer(
        self, round_: int, batch: Batch, z: Sequence[Tensor], *, needs_curvature: bool
    ) -> Answer:
        """Forward and backward on a fresh batch, whose own labels are not read."""
        labels = self._loader.batch(round_).labels
        assert labels is not None
        batch = replace(batch, labels=labels, weights=None)
        reseed = partial(seed_step, self._seed, self._model.party, round_, 0)
        reseed(self._ranks.own.start)
        step = partial(
            self._model.exchange, self._losses, self._gradients, self._batch_size, batch, reseed
        )
        loss, output, *dz = self._graphs.run("the exchange", step, *batch.tensors(), *z)
        curvature = self._curvature(output, labels) if needs_curvature else 1.0
        return Answer(self._ranks.total(loss), output, dz, curvature)

    def _curvature(self, output: Tensor, labels: Tensor) -> float:
        gather = partial(self._ranks.gather, rows=self._batch_size)
        output, labels = gather(output), gather(labels)
        return float(self._ranks.share(lambda: self._of_members.curvature(output, labels)))

    def _losses(self, batch: Batch, output: Tensor) -> Tensor:
        """The loss of each row."""
        guest, labels = self._guest, batch.labels
        assert labels is not None
        one = self._of_members.one_member(output)
        top = top_of(self._model.party, guest.top)
        check_output(top, guest.loss, guest.label_map, one, len(labels))
        return call_loss(self._model.party, self._of_members.per_instance, output, labels)

    def apply_update(self) -> None:
        """Apply the update of the latest answer."""
        self._graphs.run("the update", self._step, after="the exchange")

    def _step(self) -> list[Tensor]:
        self._gradients.finish()
        self._optimizer.step()
        return []

    def score(
        self, rows: HeldOut, start: int, stop: int, batch: Batch, z: Sequence[Tensor]
    ) -> Scores:
        """Score held-out rows from `start` to before `stop` against their randomized labels."""
        which = "test" if rows == "test" or self._guest.validation is None else "validation"
        labels = self._labels[which][start:stop].to(self._device)
        batch = replace(batch, labels=labels, weights=None)
        own, found = self._ranks.own_part(batch, stop - start), []
        with self._model.evaluating(), torch.no_grad():
            for part in self._ranks.each(stop - start):
                some = self._ranks.part_of(own, part)
                some_z = [self._ranks.part(z_BD, part) for z_BD in z]
                output = self._model.forward(some.inputs, some_z)
                found.append([output, self._losses(some, output)])
            self._model.stand_in(batch, z, stop - start)
        joined = self._ranks.join(found) or [torch.empty(0)] * 2
        output, losses_B = (self._ranks.gather(tensor, stop - start) for tensor in joined)
        return Scores(output.cpu(), losses_B.cpu(), labels.cpu())

    def metrics(self, scores: Sequence[Scores]) -> dict[str, float]:
        """Estimates of the metrics against the true labels: what decides."""
        return corrected_metrics(self._loss, self._response, scores)

    def digest(self) -> str:
        """The digest of the weights, which hosts receive."""
        return digest_whole(self._model.modules, self._ranks)

    def state(self) -> TwinState:
        """A copy of everything that training changes."""
        return TwinState(copy_weights(self._model.modules), self._optimizer.state())

    def roll_back(self, state: TwinState) -> None:
        """Return to an earlier state."""
        for which, module in self._model.modules.items():
            module.load_state_dict(state.modules[which])
        self._optimizer.restore(state.optimizer)

    def sharded_rows(self) -> dict[str, int]:
        """See `state_dict.sharded_rows`."""
        rows = sharded_rows(self._model.modules, self._optimizer)
        return {f"{PREFIX}{name}": number for name, number in rows.items()}

    def parameter_names(self) -> set[str]:
        """The names of the trained parameters in `state_dict`."""
        return {f"{PREFIX}{name}" for name in parameter_names(self._model.modules)}

    def state_dict(self, state: TwinState) -> tuple[TwinMetadata, dict[str, Tensor]]:
        """A state as the contents of a checkpoint."""
        optimizer = flatten_state(state.optimizer)
        tensors = {
            f"weights.{which}.{name}": tensor
            for which, weights in state.modules.items()
            for name, tensor in weights.items()
        }
        tensors |= {f"{OPTIMIZER}{n}": v for n, v in optimizer.items() if isinstance(v, Tensor)}
        numbers = {n: v for n, v in optimizer.items() if not isinstance(v, Tensor)}
        metadata = TwinMetadata(key=self._key.fingerprint, labels=self._digest, optimizer=numbers)
        return metadata, {f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}

    def from_state_dict(self, metadata: TwinMetadata, checkpoint: CheckpointTensors) -> TwinState:
        """The inverse of `state_dict`; raises CheckpointError, also for another key or labels."""
        self._key.check_same(metadata.key, LABELS)
        if metadata.labels != self._digest:
            raise CheckpointError(
                f"{self._model.party}: the labels: expected the rows and labels that the run "
                "started with, got others, which would be randomized again; restore the store, or "
                "start a new run with another --out at all parties"
            )
        weights = checkpoint.pop_weights(f"{PREFIX}weights.", self._model.modules)
        flat: Mapping[str, Tensor] = checkpoint.pop_prefix(f"{PREFIX}{OPTIMIZER}")
        optimizer = self._optimizer.unflatten_state({**metadata.optimizer, **flat})
        return TwinState(weights, optimizer)
