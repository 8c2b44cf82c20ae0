"""A host's model, cache and rounds in flight: one exchange round and one local step.

Paper: Party A in algorithms 1 and 2. If the weights changed between the forward pass and the
arrival of dZ (local steps, other rounds in flight), Z is recomputed and the update is weighted like
any use of a stale dZ. Otherwise it is the vanilla update, bit for bit. `host_program`
decides the order of the calls and does the network I/O. Tensors are those of the rows that this
process computes: all of them, or a slice of each batch where the party has several ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from celu.config.job import Codecs, Job, Tuning
from celu.config.schema import HeldOut
from celu.data.dataset import Batch
from celu.engine.coding import check_same_rows
from celu.engine.graphs import NO_GRAPHS, GraphOptions
from celu.engine.host_state import HostState
from celu.engine.in_flight import Sent
from celu.engine.promises import MEAN_ROWS
from celu.engine.randomness import seed_step
from celu.engine.spans import Spans
from celu.errors import ModelError
from celu.models.user_code import bottom_of, call_bottom, check_z, name_of, user_code
from celu.party import Host
from celu.ranks.buffers import BufferCheck
from celu.ranks.slices import ONE, Slices
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.wire import check_values
from celu.workset.table import Entry
from celu.workset.weighting import StaleDerivatives, Weights


class HostTrainer(HostState):
    """What a host computes with its bottom model, optimizer, workset and rounds in flight."""

    def __init__(
        self,
        name: str,
        host: Host,
        job: Job,
        spans: Spans | None = None,
        graphs: GraphOptions = NO_GRAPHS,
        ranks: Slices = ONE,
    ) -> None:
        super().__init__(name, host, job, spans, graphs, ranks)
        self._host = host
        self._buffers = BufferCheck(name, self._modules, ranks)

    def compute_activation(self, round_: int) -> Message:
        """Z of a fresh batch, as a message to send."""
        batch = self.loader.batch(round_)
        self._seed_slice(round_, 0, self._ranks.own.start)
        step = partial(self._activate, batch, round_)
        was_captured = self._graphs.has("Z")
        z = self._graphs.run("Z", step, *batch.tensors())
        # Row-major, like a checkpoint's copy: sums over another layout may differ in the last bit.
        exact_BD = torch.cat([z_BD.detach() for z_BD in z]) if len(z) > 1 else z[0].detach()
        exact_BD = exact_BD.contiguous()
        fresh: list[Tensor] | None = z
        if was_captured or self._graphs.has("Z"):  # its one autograd graph is that of this round
            self._in_flight.drop_graphs()
        if self._graphs.has("Z"):
            live = self._graphs.live("Z", "the update")
            fresh = None if live is None else [live]
        message = self._pack(
            Message(Kind.ACTIVATION, round_, tensor=exact_BD, row_digest=batch.row_digest),
            self._batch_size,
        )
        # The derivatives of earlier rounds in flight arrive first, and change the weights.
        is_next = not self._in_flight
        self._in_flight.add(round_, Sent(batch, message, fresh if is_next else None, exact_BD))
        return message

    def _activate(self, like: Batch, round_: int, *tensors: Tensor) -> list[Tensor]:
        """Z of each slice."""
        batch, reseed = like.with_tensors(tensors), partial(self._seed_slice, round_, 0)
        slices = self._ranks.each(self._batch_size, reseed)
        return [self._forward(self._ranks.part_of(batch, rows)) for rows in slices]

    def _pack(self, message: Message, rows: int) -> Message:
        """The message with the encoded tensor of all rows, at the first rank."""
        assert message.tensor is not None
        whole_BD = self._ranks.gather(message.tensor, rows)
        return self._ranks.at_first(
            lambda: self._coding.pack(
                self._noise.add(replace(message, tensor=whole_BD), self._name)
            ),
            otherwise=replace(message, tensor=None),
        )

    def check_sendable(self, message: Message) -> None:
        """Raise what `wire.check_values` raises, at all ranks."""
        self._ranks.at_first(lambda: check_values(message), otherwise=None)

    def _seed_slice(self, round_: int, use: int, slice_: int) -> None:
        seed_step(self._seed, self._name, round_, use, slice_)

    def update(self, round_: int, derivative: Message) -> None:
        """Apply the exchanged update, the batch's first use, and cache the batch."""
        sent = self._in_flight.pop(round_)

        def decode() -> list[Tensor]:
            check_same_rows(derivative, sent.batch)
            return [self._coding.unpack(derivative, self._batch_size, self._device)]

        (dz_BD,) = self._ranks.scatter(decode, self._batch_size, [self._width])
        dz_BD = dz_BD.to(self._device)
        curvature = derivative.curvature
        if not self._optimizer.parameters:
            pass  # such as a bottom that returns the columns as they are: only the guest trains
        elif sent.z is not None:
            self._graphs.run(
                "the update",
                partial(self._apply, sent.z),
                dz_BD,
                after="Z",
                instead=partial(self._recompute_and_apply, sent.batch, round_),
            )
            self._in_flight.drop_graphs()
        else:
            self._apply_stale(
                Entry(round_, sent.batch, (sent.exact_BD,), (dz_BD,), curvature, uses=0)
            )
        self.workset.insert(round_, sent.batch, (sent.exact_BD,), (dz_BD,), curvature)
        self._record(sent)

    def _record(self, sent: Sent) -> None:
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
        own = self._ranks.own_part(batch, stop - start)
        self._bottom.eval()
        with torch.no_grad():
            z = [
                self._forward(self._ranks.part_of(own, part))
                for part in self._ranks.each(stop - start)
            ]
            if (stand_in := self._ranks.stand_in(batch, stop - start)) is not None:
                self._forward(stand_in)
        self._bottom.train()
        (z_BD,) = self._ranks.join([[z_BD] for z_BD in z]) or [torch.empty(0, self._width)]
        message = Message(Kind.TEST_ACTIVATION, round_, part, z_BD, row_digest=batch.row_digest)
        return self._pack(message, stop - start)

    def set_codecs(self, codecs: Codecs | None = None) -> None:
        """Switch to other codecs, by default the contract's; no round may be in flight."""
        self._coding.set_codecs(codecs or self._job.tuning().codecs)

    def mean_activation(self) -> Tensor:
        """The mean Z of the first training rows: what to use for a row that this host lacks.

        With noise on Z, each of these rows has its own.
        """
        train, total_D = self._host.train, torch.zeros(self._width, dtype=torch.float64)
        rows = min(train.num_rows, MEAN_ROWS)
        self._bottom.eval()
        with torch.no_grad():
            for start in range(0, rows, self._batch_size):
                stop = min(start + self._batch_size, rows)
                z_BD = self._forward(train.take(slice(start, stop)).to(self._device))
                rows_of_mean = Message(Kind.MODEL, part=start, tensor=z_BD)
                noisy_BD = self._noise.add(rows_of_mean, self._name).tensor
                assert noisy_BD is not None
                total_D += noisy_BD.double().sum(0).cpu()
        self._bottom.train()
        return (total_D / rows).float()

    def apply_tuning(self, tuning: Tuning) -> None:
        """Switch to another tuning; no round may be in flight."""
        self.set_codecs(tuning.codecs)
        self.workset.table.resize(*tuning.for_role("host"))

    def specs(self) -> dict[Kind, TensorSpec]:
        """The largest tensors that the guest may send."""
        return self._coding.specs(Kind.DERIVATIVE)

    def _apply_stale(self, entry: Entry) -> None:
        self._seed_slice(entry.round, entry.uses, self._ranks.own.start)
        (stale_BD,), (dz_BD,) = entry.z, entry.dz
        weights = self._graphs.run(
            "a stale update",
            partial(self._repeat, entry.batch, partial(self._seed_slice, entry.round, entry.uses)),
            torch.full((), entry.curvature, dtype=torch.float64, device=self._device),
            stale_BD,
            dz_BD,
            *entry.batch.tensors(),
        )
        if weights:
            self.workset.record(Weights(*weights), entry, self._gather)
        self._in_flight.drop_graphs()

    def _repeat(
        self,
        like: Batch,
        reseed: Callable[[int], None],
        curvature: Tensor,
        stale_BD: Tensor,
        dz_BD: Tensor,
        *tensors: Tensor,
    ) -> list[Tensor]:
        """One update from a stale derivative; returns the `Weights`, if there are any."""
        ranks, batch = self._ranks, like.with_tensors(tensors)
        gradients, found = ranks.gradients(self._optimizer.parameters), []
        for rows in ranks.each(self._batch_size, reseed):
            dz, stale = ranks.part(dz_BD, rows), ranks.part(stale_BD, rows)
            z = self._forward(ranks.part_of(batch, rows))
            # dZ is the derivative of the mean over all rows, of which a policy sees some.
            scaled = curvature if len(z) == self._batch_size else curvature * self._share(z)
            weights = self.workset.weigh(StaleDerivatives(z.detach(), stale, dz, scaled))
            self._backward(z, dz if weights is None else weights.weights_B[:, None] * dz)
            gradients.add()
            found += [] if weights is None else [weights]
        gradients.finish()
        self._optimizer.step()
        return ranks.join(found)

    def _share(self, z_BD: Tensor) -> float:
        return self._batch_size / len(z_BD)

    def _recompute_and_apply(self, batch: Batch, round_: int, dz_BD: Tensor) -> list[Tensor]:
        """The same from Z of the same weights, computed once more with the dropout of then."""
        self._seed_slice(round_, 0, self._ranks.own.start)
        buffers = self.buffers()  # which computing Z has changed already
        outputs = self._apply([self._forward(batch)], dz_BD)
        self._write_buffers(buffers)
        return outputs

    def _apply(self, z: Sequence[Tensor], dz_BD: Tensor) -> list[Tensor]:
        """The update from Z of each slice and dZ of all."""
        gradients = self._ranks.gradients(self._optimizer.parameters)
        for z_BD, rows in zip(z, self._ranks.each(self._batch_size), strict=True):
            self._backward(z_BD, self._ranks.part(dz_BD, rows))
            gradients.add()
        gradients.finish()
        self._optimizer.step()
        return []

    def _backward(self, z_BD: Tensor, dz_BD: Tensor) -> None:
        if not z_BD.requires_grad:
            raise ModelError(
                f"{self._name}: expected Z to depend on the bottom model's parameters, got a "
                "tensor without a gradient; is it detached, or computed under torch.no_grad?"
            )
        with user_code(f"{self._name}: the backward pass of {name_of(self._bottom)}", [dz_BD]):
            z_BD.backward(dz_BD)

    def _forward(self, batch: Batch) -> Tensor:
        with self._buffers.unchanged():
            z_BD = call_bottom(self._name, self._model, batch.inputs)
        check_z(bottom_of(self._name, self._bottom), z_BD, self._width, batch.inputs)
        return z_BD
