"""A party's workset: the table, its sampling and weighting policies, and counters for reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from celu.config.job import Job, Role
from celu.data.dataset import Batch
from celu.models.building import resolve
from celu.workset.sampling import RoundRobin, Sampling
from celu.workset.table import Entry, WorksetTable
from celu.workset.weighting import (
    CompensatedWeighting,
    CosineWeighting,
    StaleDerivatives,
    StaleLosses,
    Weighting,
    Weights,
)

_REUSED_BATCHES = 16
_LATE_USE = 3  # whose weight is recorded, or the last use if a batch has fewer
SAMPLINGS: dict[str, type[Sampling]] = {"round-robin": RoundRobin}
WEIGHTINGS: dict[str, type[Weighting] | None] = {
    "compensated": CompensatedWeighting,
    "cosine": CosineWeighting,
    "none": None,
}


@dataclass
class Workset:
    """Caches exchanged batches, samples them for local steps and weights their instances."""

    table: WorksetTable
    sampling: Sampling
    weighting: Weighting | None
    local_steps: int = 0
    bubbles: int = 0
    similarity_B: Tensor | None = None  # of the latest weighted update
    # With `auto`: the mean weight of each of the latest batches at a late use.
    reuse_weights: deque[Tensor] = field(default_factory=lambda: deque(maxlen=0))
    # In rounds, of the batches used since the last report.
    ages: list[int] = field(default_factory=list)

    @staticmethod
    def from_job(job: Job, role: Role) -> Workset:
        """The workset that the contract defines for a role; raises ConfigError."""
        method = job.method
        weighting = resolve(method.weighting, WEIGHTINGS, "method.weighting")
        return Workset(
            WorksetTable(*job.tuning().for_role(role)),
            resolve(method.sampling, SAMPLINGS, "method.sampling")(),
            weighting(method.xi_of(role)) if weighting is not None else None,
            reuse_weights=deque(maxlen=_REUSED_BATCHES if job.auto else 0),
        )

    @property
    def needs_curvature(self) -> bool:
        """Whether a host's policy may use the curvature of the loss, which the guest computes."""
        return self.weighting is not None and type(self.weighting) is not CosineWeighting

    def pop_reuse_weight(self) -> float:
        """The mean weight of the instances of a batch at its third or last use; 0 if there is none.

        It is the median of the latest batches since the last call: the first rounds vary much. A
        negative one, which a policy may give to rows that have turned, counts as 0.
        """
        if not self.reuse_weights:
            return 0.0
        median = float(torch.stack(list(self.reuse_weights)).median())
        self.reuse_weights.clear()
        return max(0.0, median)

    def insert(
        self,
        round_: int,
        batch: Batch,
        z: tuple[Tensor, ...],
        dz: tuple[Tensor, ...],
        curvature: float = 1.0,
    ) -> None:
        """Cache a batch right after its exchanged update, which counts as its first use."""
        self.table.insert(Entry(round_, batch, z, dz, curvature))

    def sample(self) -> Entry | None:
        """The entry for the next local step; None (a bubble) if none is eligible."""
        newest = max((cached.round for cached in self.table), default=0)
        entry = self.table.sample(self.sampling)
        if entry is not None:
            self.ages.append(newest - entry.round)
        self.local_steps += entry is not None
        self.bubbles += entry is None
        return entry

    def weigh(self, stale: StaleDerivatives | StaleLosses) -> Weights | None:
        """The weights of instances; None without a weighting policy."""
        if self.weighting is None:
            return None
        if isinstance(stale, StaleLosses):
            return self.weighting.weigh_losses(stale)
        return self.weighting.weigh_derivatives(stale)

    def record(
        self, weights: Weights, entry: Entry, gather: Callable[[Tensor], Tensor] = lambda x_B: x_B
    ) -> None:
        """Remember, for reports and for `auto`, how an entry was weighted.

        The weights may be those of some rows: `auto` needs all, which `gather` returns.
        """
        self.similarity_B = entry.similarity_B = weights.similarity_B
        if entry.uses == min(self.table.R, _LATE_USE) and self.reuse_weights.maxlen:
            self.reuse_weights.append(gather(weights.weights_B).mean())


class TableSummary:
    """Per entry: round (from 1), uses, and the median similarity of its last local step.

    `medians` has those that are not known yet, in one tensor that may be on a GPU.
    """

    def __init__(self, table: WorksetTable) -> None:
        self._entries = [(entry, entry.round + 1, entry.uses) for entry in table]
        self._used = [entry for entry in table if entry.similarity_B is not None]
        similarities = [e.similarity_B for e in self._used if e.similarity_B is not None]
        self.medians: list[Tensor] = []
        if similarities:
            self.medians = [torch.stack(similarities).median(dim=1).values]
        for entry in self._used:
            entry.similarity_B = None

    def rows(self, medians: Sequence[float]) -> list[tuple[int, int, float | None]]:
        """The rows of the summary, with the values of `medians`."""
        for entry, median in zip(self._used, medians, strict=True):
            entry.similarity = round(median, 4)
        return [(round_, uses, entry.similarity) for entry, round_, uses in self._entries]
