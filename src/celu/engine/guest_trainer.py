"""The guest's models and cache: one exchange round and one local step.

Paper: Party B in algorithms 1 and 2. The exchanged update, that of a fresh batch, is never stale at
the guest: it uses Z as it arrives and the current weights. Local steps use the true labels and the
true loss; only Z is stale. `guest_program` decides the order of the calls and does the network I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from celu.audit.recorder import PREFIX, Recorder, load_recorded
from celu.config.job import Codecs, Job, Tuning
from celu.config.schema import HeldOut
from celu.data.batch_loader import BatchLoader
from celu.data.dataset import Batch
from celu.data.order import BatchOrder
from celu.engine.best import Best
from celu.engine.checkpoint_tensors import CheckpointTensors
from celu.engine.coding import Coding, check_same_rows
from celu.engine.device import device_of, warm_up_autograd
from celu.engine.evaluation import Evaluator, Scores
from celu.engine.graphs import NO_GRAPHS, GraphOptions, Graphs
from celu.engine.optimizer import Optimizer
from celu.engine.randomness import seed_step
from celu.engine.row_weights import RowWeights
from celu.engine.spans import Spans
from celu.engine.state import TrainerState
from celu.engine.state_dict import (
    TrainerMetadata,
    from_state_dict,
    parameter_names,
    restore_counters,
    to_state_dict,
)
from celu.errors import CheckpointError, ModelError
from celu.label_map import LabelMap
from celu.model_identity import weights_of
from celu.models.fit_labels import check_output
from celu.models.user_code import call_bottom, call_loss, call_top, name_of, user_code
from celu.party import Guest
from celu.transport.message import MAX_CURVATURE, Kind, Message, TensorSpec
from celu.transport.wire import check_finite, num_bytes
from celu.workset.weighting import StaleLosses, Weights
from celu.workset.workset import Workset

_HELD_OUT = "held_out.scores"  # in the last checkpoint of a run


class GuestTrainer:
    """The guest's models, optimizer and workset."""

    def __init__(
        self,
        name: str,
        guest: Guest,
        job: Job,
        spans: Spans | None = None,
        graphs: GraphOptions = NO_GRAPHS,
    ) -> None:
        warm_up_autograd()
        self._name = name
        self._backward = f"{name}: the backward pass of {name_of(guest.top)}"
        self._guest = guest
        self._modules = {"top": guest.top}
        if guest.bottom is not None:
            self._modules = {"bottom": guest.bottom, "top": guest.top}
        self._job = job
        self._seed = job.seed
        self._codings = {host: Coding(job, host, spans=spans) for host in job.hosts}
        self._batch_size = job.batch_size
        self._device = device_of(self._modules.values())
        order = BatchOrder(job.seed, guest.train.num_rows, job.batch_size, job.order)
        self.loader = BatchLoader(guest.train, order, self._device)
        self._row_weights = RowWeights(guest.train, guest.class_weights, self._device)
        self.evaluator = Evaluator(guest.loss, job.evaluation, guest.metrics)
        self.label_map = guest.label_map
        num_rounds = job.num_rounds(guest.train.num_rows // job.batch_size)
        self._optimizer = Optimizer(self._modules.values(), job.optimizer, name, num_rounds)
        self._graphs = Graphs(self._modules.values(), self._optimizer, graphs)
        self.workset = Workset.from_job(job, "guest")
        self.best = Best(self._modules, self._device)
        self.recorder: Recorder | None = None  # of an audit
        self.latest: tuple[Tensor, Batch] | None = None  # output and batch of the latest exchange
        # Z of later rounds, which arrived before an evaluation's; at most `depth` of each host.
        self.early: dict[str, deque[Message]] = {host: deque() for host in job.hosts}

    def start_round(self, round_: int) -> None:
        """Use the learning rate of this round for its update and its local steps."""
        self._optimizer.set_round(round_)

    @property
    def lr(self) -> float:
        """The learning rate of the current round, except for embeddings that have their own."""
        return self._optimizer.lr

    def compute_derivatives(
        self, round_: int, activations: list[Message]
    ) -> tuple[Tensor, list[Message]]:
        """Run forward and backward on a fresh batch; return its mean loss, and dZ for each host.

        `apply_update` then does the optimizer's step.
        """
        batch = self.loader.batch(round_)
        z = self._decode(activations, batch, self._batch_size)
        seed_step(self._seed, self._name, round_, 0)
        step = partial(self._answer, batch)
        loss, output, *exact = self._graphs.run("the exchange", step, *batch.tensors(), *z)
        self.latest = (output, batch)
        check_finite(loss, "the loss", round_)
        curvature = self._curvature(batch, output)
        derivatives = []
        for dz_BD, coding in zip(exact, self._codings.values(), strict=True):
            derivatives.append(
                coding.pack(
                    Message(
                        Kind.DERIVATIVE,
                        round_,
                        tensor=dz_BD,
                        row_digest=batch.row_digest,
                        curvature=curvature,
                    )
                )
            )
        self.workset.insert(round_, batch, z, tuple(exact))
        return loss, derivatives

    def _answer(self, like: Batch, *tensors: Tensor) -> list[Tensor]:
        """The mean loss, the output, and dZ for each host; weights get their gradients."""
        batch, z = _split(like, tensors)
        leaves = _leaves(z)
        output = self._forward(batch, leaves)
        loss = self._weighted_losses(batch, output).mean()
        with user_code(self._backward, leaves):
            loss.backward()
        dz = [
            self._gradient(leaf, host).contiguous()
            for leaf, host in zip(leaves, self._codings, strict=True)
        ]
        return [loss.detach(), output.detach(), *dz]

    def record(self, activations: list[Message], derivatives: list[Message]) -> None:
        """Record what hosts sent and received of the audited rows, if there is an audit.

        dZ is recorded as a host decodes it.
        """
        if self.recorder is None or self.latest is None:
            return
        output, batch = self.latest
        positions, slots = self.recorder.find(batch.tags)
        if not len(slots):
            return
        positions = positions.to(self._device)
        values = {"forecast": output[positions]}
        z = self._decode(activations, batch, self._batch_size)
        for (host, coding), z_BD, message in zip(
            self._codings.items(), z, derivatives, strict=True
        ):
            dz_BD = coding.unpack(message, self._batch_size)
            values[f"dz.{host}"] = dz_BD[positions.to(dz_BD.device)]
            values[f"latest.z.{host}"] = z_BD[positions]
        self.recorder.add(slots, values)

    def apply_update(self) -> None:
        """Apply the exchanged update, which is the batch's first use."""
        self._graphs.run("the update", self._step, after="the exchange")

    def _step(self) -> list[Tensor]:
        self._optimizer.step()
        return []

    def local_step(self) -> None:
        """Update from a cached batch, if one is eligible; nothing is sent.

        A guest without parameters (no bottom, and a top such as an inner product) has nothing to
        update between exchanges.
        """
        if not self._optimizer.parameters:
            return
        entry = self.workset.sample()
        if entry is None:
            return
        seed_step(self._seed, self._name, entry.round, entry.uses)
        tensors = (*entry.batch.tensors(), *entry.z, *entry.dz)
        weights = self._graphs.run("a local step", partial(self._repeat, entry.batch), *tensors)
        if weights:
            self.workset.record(Weights(*weights), entry)

    def _repeat(self, like: Batch, *tensors: Tensor) -> list[Tensor]:
        """One local step; returns the `Weights`, if instances are weighted."""
        batch, cached = _split(like, tensors)
        num_hosts = len(self._codings)
        leaves = _leaves(cached[:num_hosts])
        losses_B = self._weighted_losses(batch, self._forward(batch, leaves))
        weights = None
        if leaves and self.workset.weighting is not None:
            with user_code(self._backward, leaves):
                fresh = torch.autograd.grad(losses_B.mean(), leaves, retain_graph=True)
            stale = StaleLosses(torch.cat(fresh, dim=1), torch.cat([*cached[num_hosts:]], dim=1))
            weights = self.workset.weigh(stale)
            losses_B = losses_B if weights is None else weights.weights_B * losses_B
        with user_code(self._backward, leaves):
            losses_B.mean().backward(inputs=self._optimizer.parameters)
        self._optimizer.step()
        return [*weights] if weights else []

    def model_weights(self) -> dict[str, Tensor]:
        """The trained weights, as a run folder holds them."""
        return weights_of(self._modules)

    def score(self, rows: HeldOut, start: int, stop: int, activations: list[Message]) -> Scores:
        """Score held-out rows from `start` to before `stop`."""
        batch = self._guest.held_out(rows).take(slice(start, stop)).to(self._device)
        z = self._decode(activations, batch, stop - start)
        assert batch.labels is not None  # checked before the run starts
        for module in self._modules.values():
            module.eval()
        with torch.no_grad():
            output = self._forward(batch, z)
            losses_B = self._losses(batch, output)
        for module in self._modules.values():
            module.train()
        output, labels = self.label_map.in_own_units(output), self.label_map.codes(batch.labels)
        if self.recorder is not None and labels.dim() == 1:
            values = {f"z.{host}": z_BD for host, z_BD in zip(self._codings, z, strict=True)}
            self.recorder.add_held_out(start, {**values, "labels": labels})
        weights_B = None if batch.weights is None else batch.weights.cpu()
        return Scores(output.cpu(), losses_B.cpu(), labels.cpu(), weights_B)

    def set_codecs(self, codecs: Codecs | None = None) -> None:
        """Switch to other codecs, by default the contract's; no round may be in flight."""
        for coding in self._codings.values():
            coding.set_codecs(codecs or self._job.tuning().codecs)

    def apply_tuning(self, tuning: Tuning) -> None:
        """Switch to another tuning; no round may be in flight."""
        self.set_codecs(tuning.codecs)
        self.workset.table.resize(*tuning.for_role("guest"))

    def specs(self, host: str, tuning: Tuning | None = None) -> dict[Kind, TensorSpec]:
        """The largest tensors that a host may send under a tuning, by default the contract's."""
        coding = Coding(self._job, host, None if tuning is None else tuning.codecs)
        return coding.specs(Kind.ACTIVATION, Kind.TEST_ACTIVATION)

    def state(self) -> TrainerState:
        """A copy of everything that training changes."""
        return TrainerState.capture(self._modules, self._optimizer, self.workset)

    def roll_back(self, state: TrainerState) -> None:
        """Return to an earlier state; no round may be in flight."""
        state.restore(self._modules, self._optimizer, self.workset)

    def state_dict(self) -> tuple[TrainerMetadata, dict[str, Tensor]]:
        """The contents of a checkpoint between two rounds."""
        metadata, tensors = to_state_dict(self.state(), self.workset)
        label_map = None if self.label_map.leaves_labels else self.label_map
        added = {"label_map": label_map, "row_weights": self._row_weights.digest()}
        recorded = {} if self.recorder is None else self.recorder.state_dict()
        return metadata.model_copy(update=added), tensors | recorded

    def final_tensors(self) -> dict[str, Tensor]:
        """What the last checkpoint of a run has besides: the scores of the test rows.

        With validation rows there are none yet, and a run that resumes scores the test rows again.
        """
        held_out = self.evaluator.held_out
        if held_out is None or not held_out.has_one_per_row:
            return {}
        return {_HELD_OUT: torch.from_numpy(held_out.scores)}

    def parameter_names(self) -> set[str]:
        """The names of the trained parameters in `state_dict`."""
        return parameter_names(self._modules)

    def load_state_dict(self, metadata: TrainerMetadata, tensors: Mapping[str, Tensor]) -> None:
        """Load a checkpoint; raises CheckpointError if it does not fit."""
        if metadata.row_weights != self._row_weights.digest():
            raise CheckpointError(
                "the weights of rows or classes have changed since the run started; restore them, "
                "or start a new run with another --out at all parties"
            )
        checkpoint = CheckpointTensors(tensors, self._device)
        shapes = [(self._batch_size, terms.z_width) for terms in self._job.hosts.values()]
        state = from_state_dict(
            metadata, checkpoint, self._modules, self._optimizer, self.loader, shapes
        )
        restore_counters(metadata, checkpoint, self.workset)
        load_recorded(self.recorder, checkpoint.pop_prefix(PREFIX))
        scores = checkpoint.pop_optional(_HELD_OUT)
        checkpoint.check_empty()
        if metadata.label_map is not None:
            self.label_map = metadata.label_map
        elif not self.label_map.leaves_labels:  # an older release trained on labels as they are
            self.label_map = LabelMap()
        if scores is not None:
            assert self._guest.test.labels is not None  # checked before the run starts
            labels = self.label_map.codes(self._guest.test.labels)
            weights = self._guest.test.weights
            self.evaluator.load_held_out(
                scores.cpu(), labels.cpu(), None if weights is None else weights.cpu()
            )
        self.roll_back(state)

    def repeated_bytes(self) -> dict[str, int]:
        """The bytes received for later rounds, which the hosts resend when a run resumes."""
        buffered = [message for messages in self.early.values() for message in messages]
        return {"bytes_received": sum(map(num_bytes, buffered))}

    def _decode(self, activations: list[Message], batch: Batch, rows: int) -> tuple[Tensor, ...]:
        for message in activations:
            check_same_rows(message, batch)
        return tuple(
            coding.unpack(message, rows).to(self._device)
            for coding, message in zip(self._codings.values(), activations, strict=True)
        )

    def _forward(self, batch: Batch, z: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        own: tuple[Tensor, ...] = ()
        if self._guest.bottom is not None:
            own = (call_bottom(self._name, self._guest.bottom, batch.inputs),)
        return call_top(self._name, self._guest.top, (*own, *z))

    def _losses(self, batch: Batch, output: Tensor) -> Tensor:
        assert batch.labels is not None
        check_output(self._name, self._guest.loss, self.label_map, output, len(batch.labels))
        labels = self.label_map.for_loss(batch.labels)
        return call_loss(self._name, self._guest.loss.per_instance, output, labels)

    def _weighted_losses(self, batch: Batch, output: Tensor) -> Tensor:
        """The loss of each row times its weight; their mean is what is minimized."""
        losses_B, weights_B = self._losses(batch, output), self._row_weights.of(batch)
        return losses_B if weights_B is None else weights_B * losses_B

    def _curvature(self, batch: Batch, output: Tensor) -> float:
        if not self.workset.needs_curvature:
            return 1.0
        assert batch.labels is not None
        try:
            labels, weights_B = self.label_map.for_loss(batch.labels), self._row_weights.of(batch)
            with user_code(f"{self._name}: the curvature of the loss", [output, labels]):
                curvature = self._guest.loss.curvature(output, labels, weights_B)
            return min(curvature, MAX_CURVATURE)
        except ModelError as error:
            raise ModelError(f"{self._name}: {error}") from error

    def _gradient(self, leaf: Tensor, host: str) -> Tensor:
        if leaf.grad is None:
            raise ModelError(f"{self._name}: the top model does not use Z of {host}")
        return leaf.grad


def _leaves(z: Sequence[Tensor]) -> list[Tensor]:
    return [z_BD.detach().requires_grad_() for z_BD in z]


def _split(like: Batch, tensors: Sequence[Tensor]) -> tuple[Batch, Sequence[Tensor]]:
    """A batch like this one of the first tensors, and the others."""
    num = len(like.tensors())
    return like.with_tensors(tensors[:num]), tensors[num:]
