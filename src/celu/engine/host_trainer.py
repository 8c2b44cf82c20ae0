"""A host's model, cache and rounds in flight: one exchange round and one local step.

Paper: Party A in algorithms 1 and 2. If the weights changed between the forward pass and the
arrival of dZ (local steps, other rounds in flight), Z is recomputed and the update is weighted like
any use of a stale dZ. Otherwise it is the vanilla update, bit for bit. `host_program`
decides the order of the calls and does the network I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from celu.audit.recorder import RECORDED, Recorder, load_recorded
from celu.config.job import Codecs, Job, Tuning
from celu.config.schema import HeldOut
from celu.data.batch_loader import BatchLoader
from celu.data.dataset import Batch
from celu.data.order import BatchOrder
from celu.engine.best import Best
from celu.engine.checkpoint_tensors import CheckpointTensors
from celu.engine.coding import Coding, check_same_rows
from celu.engine.device import device_of, warm_up_autograd
from celu.engine.graphs import NO_GRAPHS, GraphOptions, Graphs
from celu.engine.optimizer import Optimizer
from celu.engine.randomness import seed_step
from celu.engine.spans import Spans
from celu.engine.state import TrainerState
from celu.engine.state_dict import (
    OPTIMIZER,
    TrainerMetadata,
    from_state_dict,
    parameter_names,
    restore_counters,
    to_state_dict,
)
from celu.errors import CheckpointError, ModelError, ProtocolError
from celu.model_identity import weights_of
from celu.models.user_code import call_bottom, name_of, user_code
from celu.party import Host
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.wire import num_bytes
from celu.workset.table import Entry
from celu.workset.weighting import StaleDerivatives, Weights
from celu.workset.workset import Workset

_MEAN_ROWS = 8192  # enough for a mean, and a moment's work


@dataclass
class _InFlight:
    batch: Batch
    message: Message
    z_BD: Tensor | None  # with its autograd graph, while no other update can come before its own
    exact_BD: Tensor  # Z before it was encoded


class HostTrainer:
    """One host's bottom model, optimizer, workset and rounds in flight."""

    def __init__(
        self,
        name: str,
        host: Host,
        job: Job,
        spans: Spans | None = None,
        graphs: GraphOptions = NO_GRAPHS,
    ) -> None:
        warm_up_autograd()
        self._name = name
        self._host = host
        self._bottom = host.bottom
        self._modules = {"bottom": host.bottom}
        self._job = job
        self._seed = job.seed
        self._width = job.hosts[name].z_width
        self._batch_size = job.batch_size
        self._device = device_of(self._modules.values())
        order = BatchOrder(job.seed, host.train.num_rows, job.batch_size, job.order)
        self.loader = BatchLoader(host.train, order, self._device)
        num_rounds = job.num_rounds(host.train.num_rows // job.batch_size)
        self._optimizer = Optimizer([host.bottom], job.optimizer, name, num_rounds)
        self._graphs = Graphs([host.bottom], self._optimizer, graphs)
        self._coding = Coding(job, name, spans=spans)
        self._in_flight: dict[int, _InFlight] = {}
        self.best = Best(self._modules, self._device)
        self.recorder: Recorder | None = None  # of an audit
        self.workset = Workset.from_job(job, "host")

    def start_round(self, round_: int) -> None:
        """Use the learning rate of this round for its update and its local steps."""
        self._optimizer.set_round(round_)

    @property
    def lr(self) -> float:
        """The learning rate of the current round, except for embeddings that have their own."""
        return self._optimizer.lr

    def compute_activation(self, round_: int) -> Message:
        """Z of a fresh batch, as a message to send."""
        batch = self.loader.batch(round_)
        seed_step(self._seed, self._name, round_, 0)
        (z_BD,) = self._graphs.run("Z", partial(self._activate, batch), *batch.tensors())
        # Row-major, like a checkpoint's copy: sums over another layout may differ in the last bit.
        exact_BD = z_BD.detach().contiguous()
        fresh: Tensor | None = z_BD
        if self._graphs.has("Z"):  # its one autograd graph is now that of this round
            self._drop_graphs()
            fresh = self._graphs.live("Z", "the update")
        message = self._coding.pack(
            Message(Kind.ACTIVATION, round_, tensor=exact_BD, row_digest=batch.row_digest)
        )
        # The derivatives of earlier rounds in flight arrive first, and change the weights.
        is_next = not self._in_flight
        self._in_flight[round_] = _InFlight(batch, message, fresh if is_next else None, exact_BD)
        return message

    def _activate(self, like: Batch, *tensors: Tensor) -> list[Tensor]:
        return [self._forward(like.with_tensors(tensors))]

    def update(self, round_: int, derivative: Message) -> None:
        """Apply the exchanged update, the batch's first use, and cache the batch."""
        sent = self._in_flight.pop(round_)
        check_same_rows(derivative, sent.batch)
        dz_BD = self._coding.unpack(derivative, self._batch_size).to(self._device)
        curvature = derivative.curvature
        if not self._optimizer.parameters:
            pass  # such as a bottom that returns the columns as they are: only the guest trains
        elif sent.z_BD is not None:
            self._graphs.run(
                "the update",
                partial(self._apply, sent.z_BD),
                dz_BD,
                after="Z",
                instead=partial(self._recompute_and_apply, sent.batch),
            )
            self._drop_graphs()
        else:
            self._apply_stale(
                Entry(round_, sent.batch, (sent.exact_BD,), (dz_BD,), curvature, uses=0)
            )
        self.workset.insert(round_, sent.batch, (sent.exact_BD,), (dz_BD,), curvature)
        self._record(sent)

    def _record(self, sent: _InFlight) -> None:
        """Record Z of the audited rows as the guest decodes it, if there is an audit."""
        if self.recorder is None:
            return
        positions, slots = self.recorder.find(sent.batch.tags)
        if len(slots):
            z_BD = self._coding.unpack(sent.message, self._batch_size)
            self.recorder.add(slots, {"z": z_BD[positions.to(z_BD.device)]})

    def local_step(self) -> None:
        """Update from a cached batch, if one is eligible; nothing is sent.

        A host without parameters has nothing to update.
        """
        if not self._optimizer.parameters:
            return
        entry = self.workset.sample()
        if entry is not None:
            self._apply_stale(entry)

    def compute_test_activation(
        self, rows: HeldOut, round_: int, part: int, start: int, stop: int
    ) -> Message:
        """Z of held-out rows from `start` to before `stop`, as a message to send."""
        batch = self._host.held_out(rows).take(slice(start, stop)).to(self._device)
        self._bottom.eval()
        with torch.no_grad():
            z_BD = self._forward(batch)
        self._bottom.train()
        message = Message(Kind.TEST_ACTIVATION, round_, part, z_BD, row_digest=batch.row_digest)
        return self._coding.pack(message)

    def model_weights(self) -> dict[str, Tensor]:
        """The trained weights, as a run folder holds them."""
        return weights_of(self._modules)

    def set_codecs(self, codecs: Codecs | None = None) -> None:
        """Switch to other codecs, by default the contract's; no round may be in flight."""
        self._coding.set_codecs(codecs or self._job.tuning().codecs)

    def mean_activation(self) -> Tensor:
        """The mean Z of the first training rows: what to use for a row that this host lacks."""
        train, total_D = self._host.train, torch.zeros(self._width, dtype=torch.float64)
        rows = min(train.num_rows, _MEAN_ROWS)
        self._bottom.eval()
        with torch.no_grad():
            for start in range(0, rows, self._batch_size):
                stop = min(start + self._batch_size, rows)
                z_BD = self._forward(train.take(slice(start, stop)).to(self._device))
                total_D += z_BD.double().sum(0).cpu()
        self._bottom.train()
        return (total_D / rows).float()

    def apply_tuning(self, tuning: Tuning) -> None:
        """Switch to another tuning; no round may be in flight."""
        self.set_codecs(tuning.codecs)
        self.workset.table.resize(*tuning.for_role("host"))

    def specs(self) -> dict[Kind, TensorSpec]:
        """The largest tensors that the guest may send."""
        return self._coding.specs(Kind.DERIVATIVE)

    def next_to_send(self, round_: int) -> int:
        """The first round from `round_` on whose activation was not sent."""
        return max(self._in_flight, default=round_ - 1) + 1

    def in_flight(self) -> list[Message]:
        """Activations that were sent and have no derivative yet."""
        return [sent.message for sent in self._in_flight.values()]

    def repeated_bytes(self) -> dict[str, int]:
        """The bytes of `in_flight`, which a resumed run sends again."""
        return {"bytes_sent": sum(map(num_bytes, self.in_flight()))}

    def buffers(self) -> dict[str, Tensor]:
        """A copy of what a forward pass changes: the model's buffers, such as running means."""
        return {f"bottom.{name}": b.clone() for name, b in self._bottom.named_buffers()}

    def discard_in_flight(self, buffers: Mapping[str, Tensor]) -> None:
        """Discard the rounds in flight, and restore the model's buffers."""
        self._in_flight.clear()
        for name, buffer in self._bottom.named_buffers():
            buffer.copy_(buffers[f"bottom.{name}"])

    def state(self) -> TrainerState:
        """A copy of everything that training changes, without the rounds in flight."""
        return TrainerState.capture(self._modules, self._optimizer, self.workset)

    def roll_back(self, state: TrainerState) -> None:
        """Return to an earlier state; rounds in flight stay, as sent."""
        state.restore(self._modules, self._optimizer, self.workset)
        self._drop_graphs()

    def state_dict(self) -> tuple[TrainerMetadata, dict[str, Tensor]]:
        """The contents of a checkpoint between two rounds, with the activations in flight."""
        metadata, tensors = to_state_dict(self.state(), self.workset)
        for round_, sent in self._in_flight.items():
            assert sent.message.tensor is not None
            tensors[f"in_flight.{round_}"] = sent.message.tensor
            if not self._coding.is_exact(Kind.ACTIVATION):
                tensors[f"in_flight_exact.{round_}"] = sent.exact_BD
        recorded = {} if self.recorder is None else self.recorder.state_dict()
        in_flight = {"in_flight": list(self._in_flight)}
        return metadata.model_copy(update=in_flight), tensors | recorded

    def final_tensors(self) -> dict[str, Tensor]:
        """What the last checkpoint of a run has besides: nothing, at a host."""
        return {}

    def parameter_names(self) -> set[str]:
        """The names of the trained parameters in `state_dict`."""
        return parameter_names(self._modules)

    @property
    def optimizer_prefix(self) -> str:
        """How the names of the optimizer's tensors in `state_dict` start."""
        return OPTIMIZER

    def close(self) -> None:
        """Stop reading rows."""
        self.loader.close()

    def load_state_dict(self, metadata: TrainerMetadata, tensors: Mapping[str, Tensor]) -> None:
        """Load a checkpoint, whose tuning is applied; raises CheckpointError if it does not fit.

        Activations in flight are loaded without their autograd graph. They need none: the weights
        have changed since, so the derivatives are applied to a recomputed Z.
        """
        checkpoint = CheckpointTensors(tensors, self._device)
        shape = (self._batch_size, self._width)
        state = from_state_dict(
            metadata, checkpoint, self._modules, self._optimizer, self.loader, [shape]
        )
        for round_ in metadata.in_flight:
            batch = self.loader.batch(round_)
            payload = checkpoint.pop_optional(f"in_flight.{round_}")
            message = Message(Kind.ACTIVATION, round_, tensor=payload, row_digest=batch.row_digest)
            exact_BD = self._decode(message)  # checks the message, too
            if not self._coding.is_exact(Kind.ACTIVATION):
                exact_BD = checkpoint.pop(f"in_flight_exact.{round_}", shape)
            self._in_flight[round_] = _InFlight(batch, message, None, exact_BD)
        restore_counters(metadata, checkpoint, self.workset)
        load_recorded(self.recorder, checkpoint.pop_prefix(RECORDED))
        checkpoint.check_empty()
        self.roll_back(state)

    def _decode(self, message: Message) -> Tensor:
        try:
            if message.tensor is not None:
                spec = self._coding.specs(Kind.ACTIVATION)[Kind.ACTIVATION]
                spec.validate(Kind.ACTIVATION, message.tensor.dtype, tuple(message.tensor.shape))
            return self._coding.unpack(message, self._batch_size).to(self._device)
        except ProtocolError as error:
            raise CheckpointError(f"in_flight.{message.round}: {error}") from error

    def _apply_stale(self, entry: Entry) -> None:
        seed_step(self._seed, self._name, entry.round, entry.uses)
        (stale_BD,), (dz_BD,) = entry.z, entry.dz
        weights = self._graphs.run(
            "a stale update",
            partial(self._repeat, entry.batch),
            torch.full((), entry.curvature, dtype=torch.float64, device=self._device),
            stale_BD,
            dz_BD,
            *entry.batch.tensors(),
        )
        if weights:
            self.workset.record(Weights(*weights), entry)
        self._drop_graphs()

    def _repeat(
        self, like: Batch, curvature: Tensor, stale_BD: Tensor, dz_BD: Tensor, *tensors: Tensor
    ) -> list[Tensor]:
        """One update from a stale derivative; returns the `Weights`, if there are any."""
        z_BD = self._forward(like.with_tensors(tensors))
        weights = self.workset.weigh(StaleDerivatives(z_BD.detach(), stale_BD, dz_BD, curvature))
        self._apply(z_BD, dz_BD if weights is None else weights.weights_B[:, None] * dz_BD)
        return [*weights] if weights else []

    def _recompute_and_apply(self, batch: Batch, dz_BD: Tensor) -> list[Tensor]:
        return self._apply(self._forward(batch), dz_BD)

    def _apply(self, z_BD: Tensor, dz_BD: Tensor) -> list[Tensor]:
        if not z_BD.requires_grad:
            raise ModelError(
                f"{self._name}: expected Z to depend on the bottom model's parameters, got a "
                "tensor without a gradient; is it detached, or computed under torch.no_grad?"
            )
        with user_code(f"{self._name}: the backward pass of {name_of(self._bottom)}", [dz_BD]):
            z_BD.backward(dz_BD)
        self._optimizer.step()
        return []

    def _drop_graphs(self) -> None:
        """Forget the autograd graphs of rounds in flight: their weights have changed."""
        for sent in self._in_flight.values():
            sent.z_BD = None

    def _forward(self, batch: Batch) -> Tensor:
        z_BD = call_bottom(self._name, self._bottom, batch.inputs)
        num_rows = len(next(iter(batch.inputs.values())))
        if tuple(z_BD.shape) != (num_rows, self._width):
            raise ModelError(
                f"{self._name}: the bottom model must return Z of [{num_rows}, {self._width}] "
                f"(the contract's z_width), got {list(z_BD.shape)}"
            )
        return z_BD
