"""Gradients of local steps compared with true ones: both trainers in one process, in lockstep.

From one state of training we draw several worksets: each time from different batches, filled by
rounds of the method. Then we compute the gradients of the next round's local steps and do not
apply them (see `bench.paper.gradients`).

The gradients of all batches share one component: the bias of the predictions, too high or too low.
If its sign turned since a batch was exchanged, the stale gradient points the opposite way in this
component, even if it is similar in all others. So those local steps are counted separately.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean
from typing import ClassVar

import torch
from torch import Tensor

import celu
from bench.pair import REGIMES, Pair, build_parties, pair_job
from bench.paper.gradients import (
    Weigh,
    cosine,
    guest_gradient,
    host_gradient,
    joint_gradients,
    no_weights,
    prediction_bias,
)
from bench.paper.profiles import Task
from bench.paper.runs import Values
from bench.paper.training import CELU
from celu.config.job import Tuning
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.workset.table import Entry

# Rounds from a checkpoint until a workset is full of new entries and every local step of a round
# finds one, for all measured W: twice the largest.
FILL = 16
PARTIES = ("host", "guest")


@dataclass(frozen=True)
class StaleGradients:
    """Train with CELU; at some checkpoints measure the gradients of worksets for each W and R."""

    kind: ClassVar[str] = "Stale"
    task: str
    lr: float
    grid: tuple[tuple[int, int], ...]  # W and R
    checkpoints: tuple[int, ...]
    replicas: int
    fill: int = FILL

    def __str__(self) -> str:
        """A line for the log."""
        return f"{self.task}, gradients with {len(self.grid)} pairs of W and R"

    @property
    def cost(self) -> float:
        """See `RunSpec`."""
        return float(sum(R for _, R in self.grid) * self.replicas)

    def execute(self, task: Task, pair: Pair, seed: int) -> Values:
        """See `RunSpec`: for each checkpoint, W, R and party, variances and cosines."""
        regime = REGIMES["paper"]
        guest, hosts = build_parties(pair, task.shape, regime, seed)
        job = pair_job(pair, task.shape, seed, regime.optimizer(self.lr), CELU)
        measured = []
        with lockstep(guest, hosts["host"], job) as both:
            done = 0
            for checkpoint in self.checkpoints:
                for round_ in range(done, checkpoint):
                    both.round(round_)
                done = checkpoint
                for W, R in self.grid:
                    values = both.measure(checkpoint, W, R, self.replicas, self.fill)
                    measured.append({"round": checkpoint, "W": W, "R": R, **values})
        return {"looks": measured}


class Lockstep:
    """A guest and a host in one process, without a link: tensors are passed directly."""

    def __init__(
        self, guest: celu.Guest, host: celu.Host, trainers: tuple[GuestTrainer, HostTrainer]
    ) -> None:
        self._guest, self._host = guest, host
        self.guest, self.host = trainers
        self._R = 0
        self._biases: dict[int, Tensor] = {}  # by round: the prediction bias at its exchange

    def apply_tuning(self, W: int, R: int) -> None:
        """Set W and R at both parties."""
        tuning = Tuning(W=W, R=R, depth=1, codec="fp32")
        self.guest.apply_tuning(tuning)
        self.host.apply_tuning(tuning)
        self._R = R

    def round(self, round_: int) -> None:
        """One round in the engine's order, with one round in flight."""
        z = self.host.compute_activation(round_)
        for trainer in (self.host, self.guest):
            for _ in range(self._R - 1):
                trainer.local_step()
        _, (dz,) = self.guest.compute_derivatives(round_, [z])
        assert self.guest.latest is not None
        self._biases[round_] = prediction_bias(self._guest, *self.guest.latest)
        self.guest.apply_update()
        self.host.update(round_, dz)

    def measure(self, checkpoint: int, W: int, R: int, replicas: int, fill: int = FILL) -> Values:
        """Draw worksets and compare gradients; then restore the state of the training."""
        states = self.guest.state(), self.host.state()
        method = self.guest.workset.table.W, self._R
        noise = {party: _Noise() for party in PARTIES}
        cosines: dict[str, list[float]] = {party: [] for party in PARTIES}
        unweighted: dict[str, list[float]] = {party: [] for party in PARTIES}
        turned: list[bool] = []  # by local step: whether the prediction bias changed its sign
        for replica in range(replicas):
            self.guest.roll_back(states[0])
            self.host.roll_back(states[1])
            self.apply_tuning(W, R)
            first = checkpoint + fill * (1 + replica)
            for round_ in range(first, first + fill):
                self.round(round_)
            drawn: dict[str, list[Tensor]] = {party: [] for party in PARTIES}
            for entries in self._draws(R - 1):
                true, bias = joint_gradients(self._guest, self._host, entries)
                turned.append(bool(bias * self._biases[entries["guest"].round] < 0))
                for party in PARTIES:
                    gradient = self._stale_gradient(party, entries[party], weighted=True)
                    plain = self._stale_gradient(party, entries[party], weighted=False)
                    drawn[party].append(gradient)
                    cosines[party].append(cosine(gradient, true[party]))
                    unweighted[party].append(cosine(plain, true[party]))
            for party in PARTIES:
                noise[party].add(drawn[party])
        self.guest.roll_back(states[0])
        self.host.roll_back(states[1])
        self.apply_tuning(*method)
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
        """The entries of the next local steps; both parties draw the same rounds."""
        for _ in range(num):
            entries = {"host": self.host.workset.sample(), "guest": self.guest.workset.sample()}
            known = {party: entry for party, entry in entries.items() if entry is not None}
            if len(known) == len(entries):
                yield known

    def _stale_gradient(self, party: str, entry: Entry, *, weighted: bool) -> Tensor:
        if party == "host":
            weigh: Weigh = self.host.workset.weigh if weighted else no_weights
            return host_gradient(self._host.bottom, entry, weigh)
        weigh = self.guest.workset.weigh if weighted else no_weights
        return guest_gradient(self._guest, entry, weigh)


@contextmanager
def lockstep(guest: celu.Guest, host: celu.Host, job: celu.Job) -> Iterator[Lockstep]:
    """Both parties' trainers for a job."""
    trainers = GuestTrainer("guest", guest, job), HostTrainer("host", host, job)
    both = Lockstep(guest, host, trainers)
    both.apply_tuning(*job.tuning().for_role("host"))
    try:
        yield both
    finally:
        for trainer in trainers:
            trainer.loader.close()


class _Noise:
    """The variances of the mean gradient of a round's local steps, and of its first one."""

    def __init__(self) -> None:
        self._rounds = _Moments()
        self._steps = _Moments()

    def add(self, gradients: list[Tensor]) -> None:
        """Add the gradients of one round's local steps."""
        self._rounds.add(torch.stack(gradients).mean(dim=0))
        self._steps.add(gradients[0])  # only the first: the others may use the same batch

    def values(self) -> Values:
        return {"round_variance": self._rounds.variance(), "step_variance": self._steps.variance()}


class _Moments:
    """The variance of vectors around their mean, from running sums."""

    def __init__(self) -> None:
        self._num = 0
        self._sum: Tensor | None = None
        self._squares = 0.0

    def add(self, vector: Tensor) -> None:
        """Add a vector."""
        vector = vector.double()
        self._num += 1
        self._sum = vector.clone() if self._sum is None else self._sum.add_(vector)
        self._squares += float(vector.square().sum())

    def variance(self) -> float:
        """The mean squared distance from the mean, unbiased."""
        assert self._sum is not None and self._num > 1
        around = self._squares - float(self._sum.square().sum()) / self._num
        return max(0.0, around) / (self._num - 1)


def _mean_where(values: list[float], marks: list[bool], wanted: bool) -> float | None:
    chosen = [value for value, mark in zip(values, marks, strict=True) if mark is wanted]
    return mean(chosen) if chosen else None
