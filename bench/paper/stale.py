"""Gradients of stale batches against true ones: both trainers in one place, round by round.

The three gradients of the paper's section 4.1, for a party's own parameters: of a local step, from
cached Z and dZ with weighting (its g~), and of the same batch at the same weights, computed jointly
(its g). The cosine between the two is what the paper bounds from below by rho.

What gradients of all batches share is which way the model leans: whether it foretells more than
there is or less. Where that turned since a batch was exchanged, its stale gradient points the other
way in this part, however alike it is in the rest; so it is told apart.

From one state of training, a workset is drawn again and again: each time from other batches, filled
by rounds as the method makes them. What the local steps of the next round would do is then computed
and not applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor, nn

import celu
from bench.pair import REGIMES, Pair, build_parties, pair_job
from bench.paper.profiles import Task
from bench.paper.runs import Values
from bench.paper.training import CELU
from celu.config.job import Tuning
from celu.data.dataset import Batch
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.workset.table import Entry

# Rounds from a checkpoint until a workset is full of fresh entries and every local step of a round
# finds one, for any W that is tried: twice the largest.
FILL = 16
PARTIES = ("host", "guest")
Weigh = Callable[[Tensor, Tensor], Tensor | None]


@dataclass(frozen=True)
class Stale:
    """Train as CELU does, and look at worksets of each W and R from checkpoints on the way."""

    task: str
    lr: float
    grid: tuple[tuple[int, int], ...]  # W and R
    checkpoints: tuple[int, ...]
    replicas: int
    fill: int = FILL

    def __str__(self) -> str:
        """For a reader of the screen."""
        return f"{self.task}, gradients with {len(self.grid)} pairs of W and R"

    @property
    def cost(self) -> float:
        """See `Work`."""
        return float(sum(R for _, R in self.grid) * self.replicas)

    def perform(self, task: Task, pair: Pair, seed: int) -> Values:
        """See `Work`: for each checkpoint, W, R and party, variances and cosines."""
        regime = REGIMES["paper"]
        guest, hosts = build_parties(pair, task.shape, regime, seed)
        job = pair_job(pair, task.shape, seed, regime.optimizer(self.lr), CELU)
        found = []
        with lockstep(guest, hosts["host"], job) as both:
            done = 0
            for checkpoint in self.checkpoints:
                for round_ in range(done, checkpoint):
                    both.round(round_)
                done = checkpoint
                for W, R in self.grid:
                    seen = both.look(checkpoint, W, R, self.replicas, self.fill)
                    found.append({"round": checkpoint, "W": W, "R": R, **seen})
        return {"looks": found}


class Lockstep:
    """A guest and a host, with nothing between them: what one sends the other has."""

    def __init__(
        self, guest: celu.Guest, host: celu.Host, trainers: tuple[GuestTrainer, HostTrainer]
    ) -> None:
        self._guest, self._host = guest, host
        self.guest, self.host = trainers
        self._R = 0
        self._leant: dict[int, Tensor] = {}  # by round: which way the model leant at its exchange

    def adopt(self, W: int, R: int) -> None:
        """Go on with another W and R at both."""
        tuning = Tuning(W=W, R=R, depth=1, codec="fp32")
        self.guest.apply_tuning(tuning)
        self.host.apply_tuning(tuning)
        self._R = R

    def round(self, round_: int) -> None:
        """One round as the engine orders it, one in flight."""
        z = self.host.compute_activation(round_)
        for trainer in (self.host, self.guest):
            for _ in range(self._R - 1):
                trainer.local_step()
        _, (dz,) = self.guest.compute_derivatives(round_, [z])
        assert self.guest.latest is not None
        self._leant[round_] = lean(self._guest, *self.guest.latest)
        self.guest.apply_update()
        self.host.update(round_, dz)

    def look(self, checkpoint: int, W: int, R: int, replicas: int, fill: int = FILL) -> Values:
        """Draw worksets of so many batches from here, then be as before."""
        states = self.guest.state(), self.host.state()
        method = self.guest.workset.table.W, self._R
        noise = {party: _Noise() for party in PARTIES}
        cosines: dict[str, list[float]] = {party: [] for party in PARTIES}
        unweighted: dict[str, list[float]] = {party: [] for party in PARTIES}
        turned: list[bool] = []  # by local step: whether the model leans the other way by now
        for replica in range(replicas):
            self.guest.roll_back(states[0])
            self.host.roll_back(states[1])
            self.adopt(W, R)
            first = checkpoint + fill * (1 + replica)
            for round_ in range(first, first + fill):
                self.round(round_)
            drawn: dict[str, list[Tensor]] = {party: [] for party in PARTIES}
            for entries in self._draws(R - 1):
                true, leans = joint_gradients(self._guest, self._host, entries)
                turned.append(bool(leans * self._leant[entries["guest"].round] < 0))
                for party in PARTIES:
                    gradient = self._stale(party, entries[party], weighted=True)
                    plain = self._stale(party, entries[party], weighted=False)
                    drawn[party].append(gradient)
                    cosines[party].append(_cosine(gradient, true[party]))
                    unweighted[party].append(_cosine(plain, true[party]))
            for party in PARTIES:
                noise[party].add(drawn[party])
        self.guest.roll_back(states[0])
        self.host.roll_back(states[1])
        self.adopt(*method)
        return {
            party: {
                **noise[party].values(),
                "cosine": mean(cosines[party]),
                "least_cosine": min(cosines[party]),
                "unweighted_cosine": mean(unweighted[party]),
                "turned": mean(turned),
                "cosine_turned": _mean_where(cosines[party], turned, True),
                "cosine_not_turned": _mean_where(cosines[party], turned, False),
            }
            for party in PARTIES
        }

    def _draws(self, num: int) -> Iterator[dict[str, Entry]]:
        """The entries of the next local steps; both parties' clocks are alike, so are these."""
        for _ in range(num):
            entries = {"host": self.host.workset.sample(), "guest": self.guest.workset.sample()}
            known = {party: entry for party, entry in entries.items() if entry is not None}
            if len(known) == len(entries):
                yield known

    def _stale(self, party: str, entry: Entry, *, weighted: bool) -> Tensor:
        if party == "host":
            weigh: Weigh = self.host.workset.weigh if weighted else _not_weighed
            return host_gradient(self._host.bottom, entry, weigh)
        weigh = self.guest.workset.weigh if weighted else _not_weighed
        return guest_gradient(self._guest, entry, weigh)


@contextmanager
def lockstep(guest: celu.Guest, host: celu.Host, job: celu.Job) -> Iterator[Lockstep]:
    """Both parties' trainers under a contract."""
    trainers = GuestTrainer("guest", guest, job), HostTrainer("host", host, job)
    both = Lockstep(guest, host, trainers)
    both.adopt(*job.tuning().for_role("host"))
    try:
        yield both
    finally:
        for trainer in trainers:
            trainer.loader.close()


def host_gradient(bottom: nn.Module, entry: Entry, weigh: Weigh) -> Tensor:
    """What a host's local step would apply, as one vector."""
    z_BD = bottom(**entry.batch.inputs)
    weights_B = weigh(z_BD.detach(), entry.z[0])
    dz_BD = entry.dz[0] if weights_B is None else weights_B[:, None] * entry.dz[0]
    parameters = list(bottom.parameters())
    return _flat(torch.autograd.grad(z_BD, parameters, dz_BD))


def guest_gradient(guest: celu.Guest, entry: Entry, weigh: Weigh) -> Tensor:
    """What a guest's local step would apply, as one vector."""
    leaves = [z_BD.detach().requires_grad_() for z_BD in entry.z]
    losses_B = _losses(guest, entry.batch, _output(guest, entry.batch, leaves))
    fresh = torch.autograd.grad(losses_B.mean(), leaves, retain_graph=True)
    weights_B = weigh(torch.cat(fresh, dim=1), torch.cat(entry.dz, dim=1))
    loss = (losses_B if weights_B is None else weights_B * losses_B).mean()
    return _flat(torch.autograd.grad(loss, _parameters(guest)))


def joint_gradients(
    guest: celu.Guest, host: celu.Host, entries: dict[str, Entry]
) -> tuple[dict[str, Tensor], Tensor]:
    """The true gradients of a batch at the weights as they are, and how the model leans on it."""
    batch = entries["guest"].batch
    output = _output(guest, batch, [host.bottom(**entries["host"].batch.inputs)])
    own, theirs = _parameters(guest), list(host.bottom.parameters())
    gradients = torch.autograd.grad(_losses(guest, batch, output).mean(), [*own, *theirs])
    by_party = {"guest": _flat(gradients[: len(own)]), "host": _flat(gradients[len(own) :])}
    return by_party, lean(guest, output, batch)


def lean(guest: celu.Guest, output: Tensor, batch: Batch) -> Tensor:
    """By how much the outputs are too high, where positive, or too low, all together.

    The mean loss's derivative by a number that is added to every output: for clicks, the mean
    probability less the share of clicks.
    """
    output = output.detach().requires_grad_()
    (derivative,) = torch.autograd.grad(_losses(guest, batch, output).mean(), output)
    return derivative.sum()


class _Noise:
    """Sums from which the variance of a round's local steps, and of one alone, are had."""

    def __init__(self) -> None:
        self._rounds = _Moments()
        self._steps = _Moments()

    def add(self, gradients: list[Tensor]) -> None:
        """The local steps of one round; their mean is its direction."""
        self._rounds.add(torch.stack(gradients).mean(dim=0))
        self._steps.add(gradients[0])  # one of a round: the others may be of the same batch

    def values(self) -> Values:
        return {"round_variance": self._rounds.variance(), "step_variance": self._steps.variance()}


class _Moments:
    """The variance of vectors around their mean, without keeping them."""

    def __init__(self) -> None:
        self._num = 0
        self._sum: Tensor | None = None
        self._squares = 0.0

    def add(self, vector: Tensor) -> None:
        """Take in one more."""
        vector = vector.double()
        self._num += 1
        self._sum = vector.clone() if self._sum is None else self._sum.add_(vector)
        self._squares += float(vector.square().sum())

    def variance(self) -> float:
        """The mean squared distance from the mean, unbiased."""
        assert self._sum is not None and self._num > 1
        around = self._squares - float(self._sum.square().sum()) / self._num
        return max(0.0, around) / (self._num - 1)


def _output(guest: celu.Guest, batch: Batch, z: list[Tensor]) -> Tensor:
    own = () if guest.bottom is None else (guest.bottom(**batch.inputs),)
    output: Tensor = guest.top(*own, *z)
    return output


def _losses(guest: celu.Guest, batch: Batch, output: Tensor) -> Tensor:
    assert batch.labels is not None
    losses_B: Tensor = guest.loss.per_instance(output, batch.labels)
    return losses_B


def _parameters(guest: celu.Guest) -> list[nn.Parameter]:
    own = [] if guest.bottom is None else list(guest.bottom.parameters())
    return [*own, *guest.top.parameters()]


def _flat(gradients: Iterable[Tensor]) -> Tensor:
    return torch.cat([(g.to_dense() if g.is_sparse else g).flatten() for g in gradients])


def _cosine(a: Tensor, b: Tensor) -> float:
    """Zero where either is zero: it has no direction."""
    lengths = float(a.norm() * b.norm())
    return float(torch.dot(a, b)) / lengths if lengths else 0.0


def _mean_where(values: list[float], marks: list[bool], wanted: bool) -> float | None:
    chosen = [value for value, mark in zip(values, marks, strict=True) if mark is wanted]
    return mean(chosen) if chosen else None


def _not_weighed(fresh_BD: Tensor, stale_BD: Tensor) -> None:
    del fresh_BD, stale_BD
