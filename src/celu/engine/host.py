"""A host's side of the algorithm: exchange, local step, and the program that orders them.

Paper: the lines of Party A in algorithms 1 and 2. Where weights have moved between the forward
pass and the arrival of its derivative (local steps, other rounds in flight), Z is computed anew
and the update weighted like any other use of stale statistics; where nothing has moved it is the
vanilla update, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from celu.config.job import Job, Tuning
from celu.data.batch_loader import BatchLoader
from celu.data.dataset import Batch
from celu.data.order import BatchOrder
from celu.engine.checkpointing import Checkpointer, ResumePoint
from celu.engine.coding import Coding
from celu.engine.local import Workset, check_same_rows, device_of, seed_step, wake_autograd
from celu.engine.observer import Observer
from celu.engine.optimizer import Optimizer
from celu.engine.plan import HostPlan
from celu.engine.schedule import Schedule, Segment
from celu.engine.spans import Spans
from celu.engine.state import TrainerState, follow
from celu.engine.state_dict import Tensors, TrainerMetadata, get, put, put_record_back
from celu.errors import CheckpointError, ModelError, ProtocolError
from celu.party import Host
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, expect
from celu.transport.wire import num_bytes
from celu.workset.table import Entry


@dataclass
class _InFlight:
    batch: Batch
    message: Message
    z_BD: Tensor | None  # with its graph; none if it was sent before an interruption
    sent_BD: Tensor  # as the guest has it
    updates: int  # how many updates the bottom had seen


class HostTrainer:
    """One host's model, its cache and its rounds in flight."""

    def __init__(self, name: str, host: Host, job: Job, spans: Spans | None = None) -> None:
        wake_autograd()
        self._name = name
        self._host = host
        self._bottom = host.bottom
        self._modules = {"bottom": host.bottom}
        self._seed = job.seed
        self._width = job.hosts[name].z_width
        self._batch_size = job.batch_size
        self._device = device_of(self._modules.values())
        order = BatchOrder(job.seed, host.train.num_rows, job.batch_size, job.order)
        self.feed = BatchLoader(host.train, order, self._device)
        self._optimizer = Optimizer([host.bottom], job.optimizer)
        self._coding = Coding(job, name, spans=spans)
        self._in_flight: dict[int, _InFlight] = {}
        self._updates = 0
        self.workset = Workset.of(job, "host")

    def adopt(self, tuning: Tuning) -> None:
        """Go on under another tuning; nothing may be in flight."""
        self._coding.use(tuning.codecs)
        self.workset.table.resize(*tuning.for_role("host"))

    def state(self) -> TrainerState:
        """All that training changes, as it is now; nothing may be in flight."""
        return TrainerState.of(self._modules, self._optimizer, self.workset)

    def restore(self, state: TrainerState) -> None:
        """Go back to a state."""
        state.bring_back(self._modules, self._optimizer, self.workset)

    def keep(self) -> tuple[TrainerMetadata, dict[str, Tensor]]:
        """What a checkpoint between two rounds must hold."""
        facts, tensors = put(self.state(), self.workset)
        for round_, sent in self._in_flight.items():
            assert sent.message.tensor is not None
            tensors[f"in_flight.{round_}"] = sent.message.tensor
        return facts.model_copy(update={"in_flight": list(self._in_flight)}), tensors

    def go_on(self, facts: TrainerMetadata, tensors: Mapping[str, Tensor]) -> None:
        """Be as `keep` found it, under the same tuning; raises CheckpointError."""
        left = Tensors(tensors, self._device)
        shape = (self._batch_size, self._width)
        state = get(facts, left, self._modules, self._optimizer, self.feed, [shape])
        for round_ in facts.in_flight:
            batch = self.feed.batch(round_)
            payload = left.pop(f"in_flight.{round_}")
            message = Message(Kind.ACTIVATION, round_, tensor=payload, row_digest=batch.row_digest)
            try:
                sent_BD = self._coding.unpack(message, self._batch_size).to(self._device)
            except ProtocolError as error:
                raise CheckpointError(f"in_flight.{round_}: {error}") from error
            self._in_flight[round_] = _InFlight(batch, message, None, sent_BD, self._updates)
        put_record_back(facts, left, self.workset)
        left.nothing_left()
        self.restore(state)

    def in_flight(self) -> list[Message]:
        """What was sent and is not answered yet."""
        return [sent.message for sent in self._in_flight.values()]

    def unanswered_bytes(self) -> int:
        """What that takes on a wire."""
        return sum(num_bytes(message) for message in self.in_flight())

    def specs(self) -> dict[Kind, TensorSpec]:
        """What may arrive from the guest."""
        return self._coding.specs(Kind.DERIVATIVE)

    def activate(self, round_: int) -> Message:
        """Z of a fresh batch, to be sent."""
        batch = self.feed.batch(round_)
        seed_step(self._seed, self._name, round_, 0)
        z_BD = self._forward(batch)
        message, sent_BD = self._coding.pack(
            Message(Kind.ACTIVATION, round_, tensor=z_BD, row_digest=batch.row_digest)
        )
        self._in_flight[round_] = _InFlight(batch, message, z_BD, sent_BD, self._updates)
        return message

    def update(self, round_: int, answer: Message) -> None:
        """The exchanged update, the batch's first use; then it is cached."""
        sent = self._in_flight.pop(round_)
        check_same_rows(answer, sent.batch)
        dz_BD = self._coding.unpack(answer, self._batch_size).to(self._device)
        stale_BD = sent.sent_BD
        if sent.z_BD is not None and self._updates == sent.updates:
            self._apply(sent.z_BD, dz_BD)
        else:
            self._apply_stale(sent.batch, stale_BD, dz_BD, round_, 0)
        self.workset.keep(round_, sent.batch, (stale_BD,), (dz_BD,))

    def local_step(self) -> None:
        """An update from a cached batch, if one is due; nothing is sent."""
        entry = self.workset.draw()
        if entry is not None:
            batch, (z_BD,), (dz_BD,) = entry.batch, entry.z, entry.dz
            self._apply_stale(batch, z_BD, dz_BD, entry.round, entry.uses, entry)

    def activate_test(self, round_: int, part: int, start: int, stop: int) -> Message:
        """Z of held-out rows, to be sent."""
        batch = self._host.test.take(slice(start, stop)).to(self._device)
        self._bottom.eval()
        with torch.no_grad():
            z_BD = self._forward(batch)
        self._bottom.train()
        message = Message(Kind.TEST_ACTIVATION, round_, part, z_BD, row_digest=batch.row_digest)
        return self._coding.pack(message)[0]

    def _apply_stale(
        self,
        batch: Batch,
        stale_BD: Tensor,
        dz_BD: Tensor,
        round_: int,
        use: int,
        entry: Entry | None = None,
    ) -> None:
        seed_step(self._seed, self._name, round_, use)
        z_BD = self._forward(batch)
        weights_B = self.workset.weigh(z_BD.detach(), stale_BD, entry)
        self._apply(z_BD, dz_BD if weights_B is None else weights_B[:, None] * dz_BD)

    def _apply(self, z_BD: Tensor, dz_BD: Tensor) -> None:
        z_BD.backward(dz_BD)
        self._optimizer.step()
        self._updates += 1

    def _forward(self, batch: Batch) -> Tensor:
        z_BD: Tensor = self._bottom(**batch.inputs)
        num_rows = len(next(iter(batch.inputs.values())))
        if tuple(z_BD.shape) != (num_rows, self._width):
            raise ModelError(
                f"{self._name}: the bottom model must give Z of [{num_rows}, {self._width}] "
                f"(the contract's z_width), got {list(z_BD.shape)}"
            )
        return z_BD


async def train_host(
    trainer: HostTrainer,
    link: Link,
    schedule: Schedule,
    plan: HostPlan,
    observer: Observer,
    checkpointer: Checkpointer,
    resume_point: ResumePoint,
) -> int:
    """A host's training from a resume_point to its end; the number of rounds done."""
    savepoints: dict[str, TrainerState] = {}
    here, stage = resume_point.round, resume_point.stage
    while stage is not None:
        if here == stage.segment.start:
            follow(stage, trainer, savepoints)
        link.allow(trainer.specs())
        for message in trainer.in_flight():  # sent before an interruption, if at all
            await link.send(message)
        for round_ in range(here, stage.segment.stop):
            await _exchange(trainer, link, stage.segment, round_, observer)
            if round_ + 1 < stage.segment.stop:
                checkpointer.after(round_ + 1, savepoints)
                checkpointer.announce()
        last = stage.segment.stop - 1
        times = observer.times(len(stage.segment.measured), trainer.workset)
        if stage.segment.scored:
            with observer.evaluating(counted=schedule.is_evaluation(stage.segment.stop)):
                for part, start, stop in schedule.test_parts():
                    await link.send(trainer.activate_test(last, part, start, stop))
        if plan.is_told:
            await link.send(Message(Kind.REPORT, last, body=times.to_body()))
        with observer.waiting():
            verdict = expect(await link.receive(), Kind.VERDICT, last).body or {}
        here = stage.segment.stop
        if verdict.get("stop") is True:
            checkpointer.at_the_end(here)
            return here
        stage = plan.next(verdict)
        checkpointer.after(here, savepoints)
        checkpointer.announce()
        here = stage.segment.start
    return here


async def _exchange(
    trainer: HostTrainer, link: Link, segment: Segment, round_: int, observer: Observer
) -> None:
    """One round."""
    _, R = segment.tuning.for_role("host")
    if round_ == segment.measured.start:
        observer.measures_from_here(trainer.workset)
    with observer.computing():
        for ahead in segment.sends_in(round_):
            await link.send(trainer.activate(ahead))
    with observer.local_steps():  # while Z travels, is answered, the answer returns
        for _ in range(R - 1):
            trainer.local_step()
    with observer.waiting():
        answer = expect(await link.receive(), Kind.DERIVATIVE, round_)
    with observer.computing():
        trainer.update(round_, answer)
    observer.round_done(round_, trainer.workset, None)
