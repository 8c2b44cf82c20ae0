"""The guest's side of the algorithm: exchange, local step, and the program that orders them.

Paper: the lines of Party B in algorithms 1 and 2. The guest's exchanged update is never stale at
the guest: it is made from Z as it arrives and the weights as they are. Its local steps see the
true labels and the true loss; only Z is old.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from celu.config.job import Job
from celu.data.feed import Feed
from celu.data.order import BatchOrder
from celu.data.table import Batch
from celu.engine.coding import Coding
from celu.engine.local import Workset, device_of, same_rows, seed_step
from celu.engine.observe import Observer
from celu.engine.optim import Optimizer
from celu.engine.schedule import Schedule
from celu.errors import ModelError
from celu.models.losses import HIGHER_IS_BETTER
from celu.party import Guest
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect
from celu.transport.wire import check_finite


class GuestTrainer:
    """The guest's models and cache."""

    def __init__(self, name: str, guest: Guest, job: Job) -> None:
        self._name = name
        self._guest = guest
        self._modules = [m for m in (guest.bottom, guest.top) if m is not None]
        self._seed = job.seed
        self._codings = {host: Coding(job, host) for host in job.hosts}
        self._batch_size = job.batch_size
        self._evaluation = job.evaluation
        self._device = device_of(guest.top)
        order = BatchOrder(job.seed, guest.train.num_rows, job.batch_size, job.order)
        self.feed = Feed(guest.train, order, self._device)
        self._optimizer = Optimizer(self._modules, job.optimizer)
        self.workset = Workset.of(job.method, "guest")

    def answer(self, round_: int, arrived: list[Message]) -> tuple[Tensor, list[Message]]:
        """The mean loss of a fresh batch, and dZ for each host; `apply` makes the update."""
        batch = self.feed.batch(round_)
        z = self._tensors(arrived, batch, self._batch_size)
        seed_step(self._seed, self._name, round_, 0)
        leaves = _leaves(z)
        loss = self._losses(batch, leaves).mean()
        check_finite(loss.detach(), "the loss", round_)
        loss.backward()
        answers, sent = [], []
        for leaf, (host, coding) in zip(leaves, self._codings.items(), strict=True):
            dz_BD = self._derivative(leaf, host)
            message, sent_BD = coding.pack(
                Message(Kind.DERIVATIVE, round_, tensor=dz_BD, check=batch.check)
            )
            answers.append(message)
            sent.append(sent_BD)
        self.workset.keep(round_, batch, z, tuple(sent))
        return loss.detach(), answers

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
        losses_B = self._losses(entry.batch, leaves)
        if leaves and self.workset.weighting is not None:
            fresh = torch.autograd.grad(losses_B.mean(), leaves, retain_graph=True)
            weights_B = self.workset.weigh(torch.cat(fresh, dim=1), torch.cat(entry.dz, dim=1))
            losses_B = losses_B if weights_B is None else weights_B * losses_B
        losses_B.mean().backward(inputs=self._optimizer.parameters)
        self._optimizer.step()

    def score(self, start: int, stop: int, arrived: list[Message]) -> tuple[Tensor, ...]:
        """Output, per-instance loss and labels of held-out rows, in main memory."""
        batch = self._guest.test.take(slice(start, stop)).to(self._device)
        z = self._tensors(arrived, batch, stop - start)
        assert batch.labels is not None  # a guest's rows have labels, or it would not have begun
        for module in self._modules:
            module.eval()
        with torch.no_grad():
            output = self._output(batch, z)
            losses_B = self._guest.loss.per_instance(output, batch.labels)
        for module in self._modules:
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

    def _tensors(self, arrived: list[Message], batch: Batch, rows: int) -> tuple[Tensor, ...]:
        for message in arrived:
            same_rows(message, batch)
        return tuple(
            coding.unpack(message, rows).to(self._device)
            for coding, message in zip(self._codings.values(), arrived, strict=True)
        )

    def _losses(self, batch: Batch, z: list[Tensor]) -> Tensor:
        assert batch.labels is not None
        losses_B: Tensor = self._guest.loss.per_instance(self._output(batch, z), batch.labels)
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
    trainer: GuestTrainer, links: Mapping[str, Link], schedule: Schedule, see: Observer
) -> int:
    """The guest's whole training; the number of rounds done."""
    for round_ in range(schedule.num_rounds):
        for _ in range(schedule.local_steps):  # while the last answer and the next Z travel
            trainer.local_step()
        with see.waiting():
            arrived = [
                expect(await link.receive(), Kind.ACTIVATION, round_) for link in links.values()
            ]
        loss, answers = trainer.answer(round_, arrived)
        for link, answer in zip(links.values(), answers, strict=True):
            await link.send(answer)
        trainer.apply()  # only now: the hosts wait for dZ, not for our update
        see.round_done(round_, trainer.workset, loss)
        if schedule.evaluates_after(round_):
            scored = []
            for part, start, stop in schedule.test_parts():
                kind = Kind.TEST_ACTIVATION
                with see.waiting():
                    arrived = [
                        expect(await link.receive(), kind, round_, part) for link in links.values()
                    ]
                scored.append(trainer.score(start, stop, arrived))
            metrics = trainer.metrics(scored)
            done = trainer.reached_target(metrics)
            see.evaluated(round_, metrics, done)
            for link in links.values():
                await link.send(Message(Kind.VERDICT, round_, body={"stop": done}))
            if done:
                return round_ + 1
    return schedule.num_rounds


def _leaves(z: tuple[Tensor, ...]) -> list[Tensor]:
    return [z_BD.detach().requires_grad_() for z_BD in z]
