"""The guest's side of the algorithm: exchange, local step, and the program that orders them.

Paper: the lines of Party B in algorithms 1 and 2. The guest's exchanged update is never stale at
the guest: it is made from Z as it arrives and the weights as they are. Its local steps observer the
true labels and the true loss; only Z is old.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

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
from celu.engine.plan import Outcome, Plan, Timings
from celu.engine.schedule import Schedule, Segment
from celu.engine.spans import Spans
from celu.engine.state import TrainerState, follow
from celu.engine.state_dict import Tensors, TrainerMetadata, get, put, put_record_back
from celu.errors import ModelError
from celu.models.losses import HIGHER_IS_BETTER
from celu.party import Guest
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, expect
from celu.transport.wire import check_finite


class GuestTrainer:
    """The guest's models and cache."""

    def __init__(self, name: str, guest: Guest, job: Job, spans: Spans | None = None) -> None:
        wake_autograd()
        self._name = name
        self._guest = guest
        self._modules = {"top": guest.top}
        if guest.bottom is not None:
            self._modules = {"bottom": guest.bottom, "top": guest.top}
        self._job = job
        self._seed = job.seed
        self._codings = {host: Coding(job, host, spans=spans) for host in job.hosts}
        self._batch_size = job.batch_size
        self._evaluation = job.evaluation
        self._device = device_of(self._modules.values())
        order = BatchOrder(job.seed, guest.train.num_rows, job.batch_size, job.order)
        self.feed = BatchLoader(guest.train, order, self._device)
        self._optimizer = Optimizer(self._modules.values(), job.optimizer)
        self.workset = Workset.of(job, "guest")
        self.latest: tuple[Tensor, Batch] | None = None  # the output of a fresh batch, and it

    def adopt(self, tuning: Tuning) -> None:
        """Go on under another tuning; nothing may be in flight."""
        for coding in self._codings.values():
            coding.use(tuning.codecs)
        self.workset.table.resize(*tuning.for_role("guest"))

    def state(self) -> TrainerState:
        """All that training changes, as it is now; nothing may be in flight."""
        return TrainerState.of(self._modules, self._optimizer, self.workset)

    def restore(self, state: TrainerState) -> None:
        """Go back to a state."""
        state.bring_back(self._modules, self._optimizer, self.workset)

    def keep(self) -> tuple[TrainerMetadata, dict[str, Tensor]]:
        """What a checkpoint between two rounds must hold."""
        return put(self.state(), self.workset)

    def go_on(self, facts: TrainerMetadata, tensors: Mapping[str, Tensor]) -> None:
        """Be as `keep` found it; raises CheckpointError."""
        left = Tensors(tensors, self._device)
        cached = [(self._batch_size, terms.z_width) for terms in self._job.hosts.values()]
        state = get(facts, left, self._modules, self._optimizer, self.feed, cached)
        put_record_back(facts, left, self.workset)
        left.nothing_left()
        self.restore(state)

    def unanswered_bytes(self) -> int:
        """None: whatever the guest sends is an answer."""
        return 0

    def specs(self, host: str, tuning: Tuning) -> dict[Kind, TensorSpec]:
        """What may arrive from a host under a tuning."""
        coding = Coding(self._job, host, tuning.codecs)
        return coding.specs(Kind.ACTIVATION, Kind.TEST_ACTIVATION)

    def answer(self, round_: int, arrived: list[Message]) -> tuple[Tensor, list[Message]]:
        """The mean loss of a fresh batch, and dZ for each host; `apply` makes the update."""
        batch = self.feed.batch(round_)
        z = self._tensors(arrived, batch, self._batch_size)
        seed_step(self._seed, self._name, round_, 0)
        leaves = _leaves(z)
        output = self._output(batch, leaves)
        self.latest = (output.detach(), batch)
        loss = self._losses(batch, output).mean()
        check_finite(loss.detach(), "the loss", round_)
        loss.backward()
        answers, sent = [], []
        for leaf, (host, coding) in zip(leaves, self._codings.items(), strict=True):
            dz_BD = self._derivative(leaf, host)
            message, sent_BD = coding.pack(
                Message(Kind.DERIVATIVE, round_, tensor=dz_BD, row_digest=batch.row_digest)
            )
            answers.append(message)
            sent.append(sent_BD)
        self.workset.keep(round_, batch, z, tuple(sent))
        return loss.detach(), answers

    def foretold(self) -> float:
        """How well the latest fresh batch was foretold by the weights that had not seen it.

        In the metric of the contract; higher is better.
        """
        assert self.latest is not None
        output, batch = self.latest
        with torch.no_grad():
            losses_B = self._losses(batch, output)
        assert batch.labels is not None
        return self.worth(self.metrics([(output.cpu(), losses_B.cpu(), batch.labels.cpu())]))

    def apply(self) -> None:
        """The exchanged update, the batch's first use."""
        self._optimizer.step()

    def local_step(self) -> None:
        """An update from a cached batch, if one is due; nothing is sent."""
        entry = self.workset.draw()
        if entry is None:
            return
        seed_step(self._seed, self._name, entry.round, entry.uses)
        leaves = _leaves(entry.z)
        losses_B = self._losses(entry.batch, self._output(entry.batch, leaves))
        if leaves and self.workset.weighting is not None:
            fresh = torch.autograd.grad(losses_B.mean(), leaves, retain_graph=True)
            weights_B = self.workset.weigh(
                torch.cat(fresh, dim=1), torch.cat(entry.dz, dim=1), entry
            )
            losses_B = losses_B if weights_B is None else weights_B * losses_B
        losses_B.mean().backward(inputs=self._optimizer.parameters)
        self._optimizer.step()

    def score(self, start: int, stop: int, arrived: list[Message]) -> tuple[Tensor, ...]:
        """Output, per-instance loss and labels of held-out rows, in main memory."""
        batch = self._guest.test.take(slice(start, stop)).to(self._device)
        z = self._tensors(arrived, batch, stop - start)
        assert batch.labels is not None  # a guest's rows have labels, or it would not have begun
        for module in self._modules.values():
            module.eval()
        with torch.no_grad():
            output = self._output(batch, z)
            losses_B = self._guest.loss.per_instance(output, batch.labels)
        for module in self._modules.values():
            module.train()
        return output.cpu(), losses_B.cpu(), batch.labels.cpu()

    def metrics(self, scored: list[tuple[Tensor, ...]]) -> dict[str, float]:
        """The metrics over all held-out rows."""
        output, losses, labels = (torch.cat(part) for part in zip(*scored, strict=True))
        return {"loss": float(losses.double().mean()), **self._guest.loss.metrics(output, labels)}

    def reached_target(self, metrics: Mapping[str, float]) -> bool:
        """Whether these metrics meet the contract's target."""
        metric, target = self._evaluation.metric, self._evaluation.target
        if target is None or metric not in metrics:
            return False
        value = metrics[metric]
        return value >= target if HIGHER_IS_BETTER[metric] else value <= target

    def worth(self, metrics: Mapping[str, float]) -> float:
        """The contract's metric, or the loss where the guest has no such metric, higher is better.

        A batch of one class has no AUC; it says nothing, whatever was tried.
        """
        metric = self._evaluation.metric if self._evaluation.metric in metrics else "loss"
        value = metrics[metric]
        if math.isnan(value):
            return 0.0
        return value if HIGHER_IS_BETTER[metric] else -value

    def _tensors(self, arrived: list[Message], batch: Batch, rows: int) -> tuple[Tensor, ...]:
        for message in arrived:
            check_same_rows(message, batch)
        return tuple(
            coding.unpack(message, rows).to(self._device)
            for coding, message in zip(self._codings.values(), arrived, strict=True)
        )

    def _losses(self, batch: Batch, output: Tensor) -> Tensor:
        assert batch.labels is not None
        losses_B: Tensor = self._guest.loss.per_instance(output, batch.labels)
        # [B, 1] losses times [B] weights would silently make [B, B] and undo the weighting.
        if tuple(losses_B.shape) != (len(batch.labels),):
            raise ModelError(
                f"{self._name}: the loss must give one value an instance, "
                f"[{len(batch.labels)}], got {list(losses_B.shape)}"
            )
        return losses_B

    def _output(self, batch: Batch, z: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        own = () if self._guest.bottom is None else (self._guest.bottom(**batch.inputs),)
        output: Tensor = self._guest.top(*own, *z)
        return output

    def _derivative(self, leaf: Tensor, host: str) -> Tensor:
        if leaf.grad is None:
            raise ModelError(f"{self._name}: the top model does not use Z of {host}")
        return leaf.grad


async def train_guest(
    trainer: GuestTrainer,
    links: Mapping[str, Link],
    schedule: Schedule,
    plan: Plan,
    observer: Observer,
    checkpointer: Checkpointer,
    resume_point: ResumePoint,
) -> int:
    """The guest's training from a resume_point to its end; the number of rounds done."""
    savepoints: dict[str, TrainerState] = {}
    here, stage = resume_point.round, resume_point.stage
    if stage is not None and plan.chooses and 0 < here == stage.segment.start:
        observer.chosen(stage)  # before the interruption it may not have been
    while stage is not None:
        segment, last = stage.segment, stage.segment.stop - 1
        if here == segment.start:
            follow(stage, trainer, savepoints)
        fresh: list[float] = []
        for round_ in range(here, segment.stop):
            await _exchange(trainer, links, segment, round_, observer)
            if segment.judged:
                fresh.append(trainer.foretold())
            if round_ < last:
                checkpointer.after(round_ + 1, savepoints)
                checkpointer.announce()
        times = observer.times(len(segment.measured), trainer.workset)
        metrics: dict[str, float] = {}
        if segment.scored:
            # What a plan scores for its own ends is part of the training.
            with observer.evaluating(counted=schedule.is_evaluation(segment.stop)):
                metrics = await _evaluate(trainer, links, schedule, last, observer)
        done = trainer.reached_target(metrics)
        if metrics:
            observer.evaluated(last, metrics, done)
        hosts = await _reports(links, segment) if plan.chooses else ()
        held_out = trainer.worth(metrics) if metrics else None
        next_ = None if done else plan.after(Outcome(segment, held_out, fresh, times, hosts))
        here = segment.stop
        if next_ is None:
            checkpointer.at_the_end(here)
            await _tell(links, last, {"stop": True})
            return here
        checkpointer.after(here, savepoints)
        for host, link in links.items():  # before a host may act upon the verdict
            link.allow(trainer.specs(host, next_.segment.tuning))
        told = {"next": next_.to_body()} if plan.chooses else {}
        await _tell(links, last, {"stop": False, **told})
        if plan.chooses:
            observer.chosen(next_)
        checkpointer.announce()
        here, stage = next_.segment.start, next_
    return here


async def _exchange(
    trainer: GuestTrainer,
    links: Mapping[str, Link],
    segment: Segment,
    round_: int,
    observer: Observer,
) -> None:
    """One round."""
    _, R = segment.tuning.for_role("guest")
    if round_ == segment.measured.start:
        observer.measures_from_here(trainer.workset)
    with observer.local_steps():  # while the last answer and the next Z travel
        for _ in range(R - 1):
            trainer.local_step()
    with observer.waiting():
        arrived = [expect(await link.receive(), Kind.ACTIVATION, round_) for link in links.values()]
    with observer.computing():
        loss, answers = trainer.answer(round_, arrived)
        for link, answer in zip(links.values(), answers, strict=True):
            await link.send(answer)
        trainer.apply()  # only now: the hosts wait for dZ, not for our update
    observer.round_done(round_, trainer.workset, loss)


async def _evaluate(
    trainer: GuestTrainer,
    links: Mapping[str, Link],
    schedule: Schedule,
    round_: int,
    observer: Observer,
) -> dict[str, float]:
    """Score the held-out rows, part by part; the metrics over all of them."""
    scored = []
    for part, start, stop in schedule.test_parts():
        with observer.waiting():
            arrived = [
                expect(await link.receive(), Kind.TEST_ACTIVATION, round_, part)
                for link in links.values()
            ]
        scored.append(trainer.score(start, stop, arrived))
    return trainer.metrics(scored)


async def _reports(links: Mapping[str, Link], segment: Segment) -> tuple[Timings, ...]:
    """How the hosts spent their time."""
    reports = [
        expect(await link.receive(), Kind.REPORT, segment.stop - 1) for link in links.values()
    ]
    return tuple(Timings.from_body(report.body, len(segment.measured)) for report in reports)


async def _tell(links: Mapping[str, Link], round_: int, verdict: dict[str, object]) -> None:
    for link in links.values():
        await link.send(Message(Kind.VERDICT, round_, body=verdict))


def _leaves(z: tuple[Tensor, ...]) -> list[Tensor]:
    return [z_BD.detach().requires_grad_() for z_BD in z]
