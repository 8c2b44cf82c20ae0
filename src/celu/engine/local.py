"""What the two roles share in a local step: the table, its policies, and their record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

from celu.config.job import Job, Role
from celu.data.dataset import Batch
from celu.errors import AlignmentError
from celu.models.building import resolve
from celu.transport.message import Message
from celu.workset.sampling import RoundRobin, Sampling
from celu.workset.table import Entry, WorksetTable
from celu.workset.weighting import CosineWeighting, Weighting, Weights

SAMPLINGS: dict[str, type[Sampling]] = {"round-robin": RoundRobin}
WEIGHTINGS: dict[str, type[Weighting] | None] = {"cosine": CosineWeighting, "none": None}


@dataclass
class Workset:
    """A party's table and policies, and counts of what it did with them."""

    table: WorksetTable
    sampling: Sampling
    weighting: Weighting | None
    local_steps: int = 0
    bubbles: int = 0
    similarity_B: Tensor | None = None  # of the latest weighted update
    # How many rounds old the batches were that were used since the last report.
    ages: list[int] = field(default_factory=list)

    @staticmethod
    def of(job: Job, role: Role) -> Workset:
        """The workset of a role under the contract."""
        method = job.method
        weighting = resolve(method.weighting, WEIGHTINGS, "method.weighting")
        return Workset(
            WorksetTable(*job.tuning().for_role(role)),
            resolve(method.sampling, SAMPLINGS, "method.sampling")(),
            weighting(method.xi_of(role)) if weighting is not None else None,
        )

    def draw(self) -> Entry | None:
        """The entry of the next local step; None, and a bubble counted, where there is none."""
        newest = max((cached.round for cached in self.table), default=0)
        entry = self.table.sample(self.sampling)
        if entry is not None:
            self.ages.append(newest - entry.round)
        self.local_steps += entry is not None
        self.bubbles += entry is None
        return entry

    def keep(
        self, round_: int, batch: Batch, z: tuple[Tensor, ...], dz: tuple[Tensor, ...]
    ) -> None:
        """Cache what was just exchanged; that update was its first use."""
        self.table.insert(Entry(round_, batch, z, dz))

    def weigh(
        self, fresh_BD: Tensor, stale_BD: Tensor, entry: Entry | None = None
    ) -> Tensor | None:
        """Instance weights, [B]; None where every instance counts fully.

        `entry` is the cached batch that they are for, where it is one.
        """
        if self.weighting is None:
            return None
        weights: Weights = self.weighting.weigh(fresh_BD, stale_BD)
        self.similarity_B = weights.similarity_B
        if entry is not None:
            entry.similarity_B = weights.similarity_B
        return weights.weights_B


def view(table: WorksetTable) -> list[tuple[int, int, float | None]]:
    """Each cached batch: its round, its uses, the median similarity of its last local step."""
    used = [entry for entry in table if entry.similarity_B is not None]
    if used:
        similarity_EB = torch.stack([e.similarity_B for e in used if e.similarity_B is not None])
        medians = similarity_EB.median(dim=1).values.tolist()  # one wait for an accelerator
        for entry, median in zip(used, medians, strict=True):
            entry.similarity, entry.similarity_B = round(median, 4), None
    return [(entry.round + 1, entry.uses, entry.similarity) for entry in table]


def check_same_rows(message: Message, batch: Batch) -> None:
    """Refuse a tensor that a peer made from other rows than ours; raises AlignmentError."""
    if message.row_digest != batch.row_digest:
        raise AlignmentError(
            f"{message.kind.name} of round {message.round}: a peer's rows are not ours; no step "
            "was applied. Has a store changed since the parties were aligned? "
            'Run "celu align" again at all parties'
        )


def device_of(modules: Iterable[nn.Module]) -> torch.device:
    """Where a party's modules compute; main memory where none of them has parameters."""
    parameters = (p for module in modules for p in module.parameters())
    return next((p.device for p in parameters), torch.device("cpu"))


@cache
def wake_autograd() -> None:
    """Have torch load now what its first backward pass would: half a second of a round's time.

    By the first rounds `auto` tells how far away the peer is.
    """
    torch.ones(1, requires_grad=True).backward(torch.ones(1))


def seed_step(seed: int, party: str, round_: int, use: int) -> None:
    """Make a module's own randomness (dropout) a function of where it is used.

    So a run's bits do not depend on which parties share a process, and any step can be replayed.
    """
    key = hashlib.blake2b(f"{seed}/{party}/{round_}/{use}".encode(), digest_size=8).digest()
    value = int.from_bytes(key, "little") >> 1
    # Not torch.manual_seed, which looks for every kind of accelerator each time.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(value)
