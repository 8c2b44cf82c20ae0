"""The guest's models and cache: one exchange round and one local step.

Paper: Party B in algorithms 1 and 2. The exchanged update, that of a fresh batch, is never stale at
the guest: it uses Z as it arrives and the current weights. Local steps use the true labels and the
true loss; only Z is stale. `guest_program` decides the order of the calls and does the network I/O.
Tensors are those of the rows that this process computes: all of them, or a slice of each batch
where the party has several ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from celu.config.job import Codecs, Job, Tuning
from celu.config.schema import HeldOut
from celu.data.dataset import Batch
from celu.engine.coding import Coding, unpack_all
from celu.engine.evaluation import Metrics
from celu.engine.graphs import NO_GRAPHS, GraphOptions
from celu.engine.guest_model import leaves_of, side_by_side, split_batch
from celu.engine.guest_state import GuestState
from celu.engine.outcome import Outcome, agree
from celu.engine.randomness import seed_step
from celu.engine.scores import Scores
from celu.engine.spans import Spans
from celu.engine.twin import Answer
from celu.errors import NonFiniteError
from celu.party import Guest
from celu.ranks.slices import ONE, Slices
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.wire import check_finite, check_values, num_bytes
from celu.workset.weighting import StaleLosses, Weights


class GuestTrainer(GuestState):
    """What a guest computes with its models, optimizer and workset."""

    def __init__(
        self,
        name: str,
        guest: Guest,
        job: Job,
        spans: Spans | None = None,
        graphs: GraphOptions = NO_GRAPHS,
        ranks: Slices = ONE,
    ) -> None:
        super().__init__(name, guest, job, graphs, ranks)
        self._guest = guest
        self._codings = {host: Coding(job, host, spans=spans) for host in job.hosts}
        self._gradients = ranks.gradients(self._optimizer.parameters)
        self.latest: tuple[Tensor, Batch] | None = None  # output and batch of the latest exchange
        self.loss = torch.zeros(())  # of the latest exchange
        self._fresh: _Fresh | None = None  # what the own model has yet to learn from
        # Z of later rounds, which arrived before an evaluation's; at most `depth` of each host.
        self.early: dict[str, deque[Message]] = {host: deque() for host in job.hosts}

    def start_round(self, round_: int) -> None:
        """Use the learning rate of this round for its update and its local steps."""
        super().start_round(round_)
        if self.twin is not None:
            self.twin.set_round(round_)

    def num_local_steps(self, R: int) -> int:
        """How many local steps a round has: of R updates from a batch, the exchange is one.

        With a twin, its update is another. From R = 2 on, it takes the place of a local step.
        """
        return max(0, R - (1 if self.twin is None else 2))

    def compute_derivatives(
        self, round_: int, activations: list[Message]
    ) -> tuple[Tensor, list[Message]]:
        """Run forward and backward on a fresh batch; return its mean loss, and dZ for each host.

        `apply_update` then does the optimizer's step. With a twin, all of this is the twin's.
        """
        batch = self.loader.batch(round_)
        fresh = _Fresh(round_, batch, self._decode(activations, batch, self._batch_size))
        if self.twin is None:
            answer = self._exchange(fresh)
        else:
            needed = self.workset.needs_curvature
            answer = self.twin.answer(round_, batch, fresh.z, needs_curvature=needed)
            self._fresh = fresh
        check_finite(answer.loss, "the loss", round_)
        messages = [
            Message(
                Kind.DERIVATIVE,
                round_,
                row_digest=batch.row_digest,
                curvature=answer.curvature,
            )
            for _ in self._codings
        ]
        derivatives = self._pack(messages, answer.dz, batch)
        if self.twin is None:
            self._remember(fresh, answer)
        return answer.loss, derivatives

    def _pack(self, messages: list[Message], dz: Sequence[Tensor], batch: Batch) -> list[Message]:
        """The messages with dZ of all rows, with noise and encoded, at the first rank."""
        whole = [self._ranks.gather(dz_BD, self._batch_size) for dz_BD in dz]
        classes = None
        if self._noise.needs_classes:
            classes = self._losses.is_positive(batch, self._batch_size)

        def pack() -> list[Message]:
            return [
                coding.pack(self._noise.add(replace(message, tensor=dz_BD), host, classes))
                for dz_BD, message, (host, coding) in zip(
                    whole, messages, self._codings.items(), strict=True
                )
            ]

        return self._ranks.at_first(pack, otherwise=messages)

    def check_sendable(self, derivatives: Sequence[Message]) -> None:
        """Raise what `wire.check_values` raises, at all ranks."""

        def check() -> None:
            for derivative in derivatives:
                check_values(derivative)

        self._ranks.at_first(check, otherwise=None)

    def _exchange(self, fresh: _Fresh) -> Answer:
        """Forward and backward of the own model on a fresh batch."""
        batch = fresh.batch
        reseed = partial(seed_step, self._seed, self._name, fresh.round, 0)
        reseed(self._ranks.own.start)
        losses, gradients = self._losses.weighted, self._gradients
        step = partial(self._model.exchange, losses, gradients, self._batch_size, batch, reseed)
        loss, output, *dz = self._graphs.run("the exchange", step, *batch.tensors(), *fresh.z)
        loss = self._ranks.total(loss)
        if self.latest is None:
            self._scoring.check_metric(self._job.evaluation, output)
        self.latest, self.loss = (output, batch), loss
        is_sent = self.twin is None
        return Answer(loss, output, dz, self._curvature(batch, output) if is_sent else 1.0)

    def _curvature(self, batch: Batch, output: Tensor) -> float:
        if not self.workset.needs_curvature:
            return 1.0
        return self._losses.curvature(batch, output, self._batch_size)

    def _remember(self, fresh: _Fresh, answer: Answer) -> None:
        self.workset.insert(fresh.round, fresh.batch, fresh.z, tuple(answer.dz))

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
        values = {"forecast": self._losses.combine(output[positions])}
        z = self._decode(activations, batch, self._batch_size)
        for (host, coding), z_BD, message in zip(
            self._codings.items(), z, derivatives, strict=True
        ):
            dz_BD = coding.unpack(message, self._batch_size)
            values[f"dz.{host}"] = dz_BD[positions.to(dz_BD.device)]
            values[f"latest.z.{host}"] = z_BD[positions]
        self.recorder.add(slots, values)

    def apply_update(self) -> None:
        """Apply the exchanged update, which is the batch's first use.

        With a twin, its update, and then that of the own model, which NaN does not stop: hosts
        would see that.
        """
        if self.twin is not None and self._fresh is not None:
            self.twin.apply_update()
            self._remember(self._fresh, self._exchange(self._fresh))
            self._fresh = None
        self._graphs.run("the update", self._step, after="the exchange")

    def _step(self) -> list[Tensor]:
        self._gradients.finish()
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
        reseed = partial(seed_step, self._seed, self._name, entry.round, entry.uses)
        reseed(self._ranks.own.start)
        tensors = (*entry.batch.tensors(), *entry.z, *entry.dz)
        step = partial(self._repeat, entry.batch, reseed)
        weights = self._graphs.run("a local step", step, *tensors)
        if weights:
            rows = self._batch_size
            self.workset.record(Weights(*weights), entry, lambda x_B: self._ranks.gather(x_B, rows))

    def _repeat(self, like: Batch, reseed: Callable[[int], None], *tensors: Tensor) -> list[Tensor]:
        """One local step; returns the `Weights`, if instances are weighted."""
        whole, cached = split_batch(like, tensors)
        found = []
        for rows in self._ranks.each(self._batch_size, reseed):
            batch = self._ranks.part_of(whole, rows)
            found.append(self._learn(batch, [self._ranks.part(x_BD, rows) for x_BD in cached]))
            self._gradients.add()
        self._step()
        return self._ranks.join(found)

    def _learn(self, batch: Batch, cached: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of a slice from its cached Z and dZ; returns the `Weights`, if any."""
        num_hosts = len(self._codings)
        leaves = leaves_of(cached[:num_hosts])
        mean = partial(self._ranks.mean, rows=self._batch_size)
        losses_B = self._losses.weighted(batch, self._forward(batch, leaves))
        weights = None
        if leaves and self.workset.weighting is not None:
            with self._model.backward(leaves):
                fresh = torch.autograd.grad(mean(losses_B), leaves, retain_graph=True)
            stale = StaleLosses(side_by_side(fresh), side_by_side(cached[num_hosts:]))
            weights = self.workset.weigh(stale)
            losses_B = losses_B if weights is None else weights.weights_B * losses_B
        with self._model.backward(leaves):
            mean(losses_B).backward(inputs=self._optimizer.leaves)
        return [*weights] if weights else []

    def score(self, rows: HeldOut, start: int, stop: int, activations: list[Message]) -> Scores:
        """Score held-out rows from `start` to before `stop`."""
        batch = self._guest.held_out(rows).take(slice(start, stop)).to(self._device)
        z = dict(zip(self._codings, self._decode(activations, batch, stop - start), strict=True))
        return self._scoring.score(rows, start, batch, z, self.recorder)

    def metrics(self, rows: HeldOut, scores: Sequence[Scores]) -> Metrics:
        """The metrics over all scored rows, which the first rank has; all ranks get them."""
        return self._scoring.metrics(rows, scores)

    def agree(self, outcome: Outcome) -> Outcome:
        """The outcome of a segment that all ranks of this party use."""
        return agree(outcome, self._ranks)

    def check_own_model(self) -> None:
        """Raise NonFiniteError if the trained weights are not finite.

        With a twin, nothing else does: if NaN ended the run, hosts would see what depends on true
        labels.
        """
        weights = [p for module in self._modules.values() for p in module.parameters()]
        is_finite = all(bool(weight.isfinite().all()) for weight in weights)
        if any(self.which_anywhere([not is_finite])):
            raise NonFiniteError(
                f"{self._name}: the model contains NaN or Inf, although the run was completed with "
                "the hosts; lower the learning rate, and train again"
            )

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

    def repeated_bytes(self) -> dict[str, int]:
        """The bytes received for later rounds, which the hosts resend when a run resumes."""
        buffered = [message for messages in self.early.values() for message in messages]
        return {"bytes_received": sum(map(num_bytes, buffered))}

    def _decode(self, activations: list[Message], batch: Batch, rows: int) -> tuple[Tensor, ...]:
        """This process's rows of every Z."""
        widths = [terms.z_width for terms in self._job.hosts.values()]
        own = self._ranks.scatter(
            lambda: unpack_all(self._codings.values(), activations, batch, rows, self._device),
            rows,
            widths,
        )
        return tuple(z_BD.to(self._device) for z_BD in own)

    def _forward(self, batch: Batch, z: Sequence[Tensor]) -> Tensor:
        return self._model.forward(batch.inputs, z)


class _Fresh(NamedTuple):
    """A batch that was just exchanged, and Z of each host."""

    round: int
    batch: Batch
    z: tuple[Tensor, ...]
