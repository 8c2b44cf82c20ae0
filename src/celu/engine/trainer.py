"""What the trainers of a guest and of a host share: modules, rows, optimizer, cache, best weights.

It computes nothing of a round: `guest_trainer` and `host_trainer` do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from celu.audit.recorder import Recorder
from celu.checkpoint.shards import WHOLE, Share
from celu.config.job import Job
from celu.data.batch_loader import BatchLoader
from celu.data.order import BatchOrder
from celu.engine.best import PREFIX, Best
from celu.engine.device import device_of, warm_up_autograd
from celu.engine.graphs import GraphOptions, Graphs
from celu.engine.optimizer import Optimizer
from celu.engine.state import TrainerState
from celu.engine.state_dict import OPTIMIZER, parameter_names, sharded_rows
from celu.party import Guest, Host
from celu.ranks.own_rows import sharded_names
from celu.ranks.slices import Slices
from celu.ranks.whole import digest_whole
from celu.workset.workset import Workset


class Trainer:
    """A party's modules with their optimizer, batches, workset and best weights."""

    def __init__(
        self,
        name: str,
        party: Guest | Host,
        modules: Mapping[str, nn.Module],
        job: Job,
        role: Literal["guest", "host"],
        graphs: GraphOptions,
        ranks: Slices,
    ) -> None:
        warm_up_autograd()
        self._ranks = ranks
        self._name = name
        self._modules = modules
        self._job = job
        self._seed = job.seed
        self._batch_size = job.batch_size
        self._device = device_of(modules.values())
        order = BatchOrder(job.seed, party.train.num_rows, job.batch_size, job.order)
        part = None if len(ranks.own) == ranks.size else ranks.own_rows(job.batch_size)
        self.loader = BatchLoader(party.train, order, self._device, part)
        num_rounds = job.num_rounds(party.train.num_rows // job.batch_size)
        self._optimizer = Optimizer(modules.values(), job.optimizer, name, num_rounds)
        self._graphs = Graphs(modules.values(), self._optimizer, graphs)
        self.workset = Workset.from_job(job, role)
        self.best = Best(modules, self._device)
        self.recorder: Recorder | None = None  # of an audit

    def start_round(self, round_: int) -> None:
        """Use the learning rate of this round for its update and its local steps."""
        self._optimizer.set_round(round_)

    @property
    def lr(self) -> float:
        """The learning rate of the current round, except for embeddings that have their own."""
        return self._optimizer.lr

    def digest(self) -> str:
        """The digest of the trained weights, as a run folder holds them, at all ranks."""
        return digest_whole(self._modules, self._ranks)

    def state(self) -> TrainerState:
        """A copy of everything that training changes, without the rounds in flight."""
        return TrainerState.capture(self._modules, self._optimizer, self.workset)

    def roll_back(self, state: TrainerState) -> None:
        """Return to an earlier state; rounds in flight stay, as sent."""
        state.restore(self._modules, self._optimizer, self.workset)

    def final_tensors(self) -> dict[str, Tensor]:
        """What the last checkpoint of a run has besides."""
        return {}

    def share(self) -> Share:
        """Which tensors of a checkpoint are sharded tables, and which rows this rank has."""
        rows = self._sharded_rows()
        return Share(self._ranks.own.start, self._ranks.size, rows) if rows else WHOLE

    def _sharded_rows(self) -> dict[str, int]:
        tables = sharded_names(self._modules).items()
        best = {f"{PREFIX}{name}": own.table_rows for name, own in tables}
        return best | sharded_rows(self._modules, self._optimizer)

    def which_anywhere(self, found: Sequence[bool]) -> list[bool]:
        """Of each, whether it holds at any rank: each looks at its rows of sharded tables."""
        total = self._ranks.total(torch.tensor(found, dtype=torch.float32))
        return [bool(number > 0) for number in total]

    def parameter_names(self) -> set[str]:
        """The names of the trained parameters in a checkpoint: NaN in one of them ends the run."""
        return parameter_names(self._modules)

    @property
    def optimizer_prefix(self) -> str:
        """How the names of the optimizer's tensors in a checkpoint start."""
        return OPTIMIZER

    def close(self) -> None:
        """Stop reading rows."""
        self.loader.close()
