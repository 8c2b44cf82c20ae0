"""A trainer's state as names, tensors and numbers, for a checkpoint, and back.

Batches are not kept: an entry of the table knows its round, and the feed gathers it again. What
comes back is compared with the live model, name by name, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from celu.data.batch_loader import BatchLoader
from celu.engine.local import Workset
from celu.engine.optimizer import Optimizer, remembered
from celu.engine.state import TrainerState
from celu.errors import CheckpointError
from celu.workset.table import Entry

Shape = tuple[int, ...]


class EntryClocks(BaseModel):
    """An entry of the table, without its tensors."""

    model_config = ConfigDict(extra="forbid", strict=True)
    round: int
    uses: int
    used_at: int


class TrainerMetadata(BaseModel):
    """What a checkpoint holds of a trainer besides tensors."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: int  # the table's clock
    entries: list[EntryClocks]
    local_steps: int
    bubbles: int
    optimizer: dict[str, int | float | None]  # what it remembers that is no tensor
    in_flight: list[int] = []  # rounds that were sent and not answered


def put(state: TrainerState, workset: Workset) -> tuple[TrainerMetadata, dict[str, Tensor]]:
    """What to keep of a state and of a workset's record."""
    step, entries = state.table
    kept = remembered(state.optimizer)
    facts = TrainerMetadata(
        step=step,
        entries=[EntryClocks(round=e.round, uses=e.uses, used_at=e.used_at) for e in entries],
        local_steps=workset.local_steps,
        bubbles=workset.bubbles,
        optimizer={n: value for n, value in kept.items() if not isinstance(value, Tensor)},
    )
    tensors = {
        f"weights.{which}.{name}": tensor
        for which, weights in state.modules.items()
        for name, tensor in weights.items()
    }
    tensors |= {f"optimizer.{n}": value for n, value in kept.items() if isinstance(value, Tensor)}
    for entry in entries:
        for what, stale in (("z", entry.z), ("dz", entry.dz)):
            tensors |= {f"table.{entry.round}.{what}.{k}": t for k, t in enumerate(stale)}
    if workset.similarity_B is not None:
        tensors["similarity"] = workset.similarity_B
    return facts, tensors


class Tensors:
    """The tensors of a checkpoint, taken one by one; raises CheckpointError for a wrong one."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self._tensors = dict(tensors)
        self._device = device

    def take(self, name: str, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor of a name, which must be of this shape and type."""
        tensor = self._tensors.pop(name, None)
        if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != dtype:
            got = "none" if tensor is None else f"{tensor.dtype} of {list(tensor.shape)}"
            raise CheckpointError(
                f"{name}: expected {dtype} of {list(shape)} in the checkpoint, as the model has "
                f"it, got {got}; put back the model and the settings that the run began with"
            )
        return tensor.to(self._device)

    def pop(self, name: str) -> Tensor | None:
        """The tensor of a name, of any shape, if there is one."""
        tensor = self._tensors.pop(name, None)
        return None if tensor is None else tensor.to(self._device)

    def take_all(self, prefix: str) -> dict[str, Tensor]:
        """All tensors whose names begin so, by the rest of their names."""
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {n.removeprefix(prefix): self._tensors.pop(n).to(self._device) for n in names}

    def nothing_left(self) -> None:
        """Raise CheckpointError if there are tensors that nobody asked for."""
        if self._tensors:
            raise CheckpointError(
                f"{', '.join(sorted(self._tensors)[:5])}: expected no such tensor in the "
                "checkpoint; put back the model and the settings that the run began with"
            )


def get(
    facts: TrainerMetadata,
    tensors: Tensors,
    modules: Mapping[str, nn.Module],
    optimizer: Optimizer,
    feed: BatchLoader,
    cached: Sequence[Shape],
) -> TrainerState:
    """The state that `put` took apart; `cached` gives the shapes of an entry's Z, and of its dZ.

    Raises CheckpointError, by name, for what does not fit the modules and the optimizer.
    """
    weights = {
        which: {
            name: tensors.take(f"weights.{which}.{name}", tuple(live.shape), live.dtype)
            for name, live in module.state_dict().items()
        }
        for which, module in modules.items()
    }
    state = optimizer.state_of({**facts.optimizer, **tensors.take_all("optimizer.")})
    entries = []
    for clocks in facts.entries:  # ascending, as a feed wants to be asked
        z, dz = (
            tuple(
                tensors.take(f"table.{clocks.round}.{what}.{k}", shape)
                for k, shape in enumerate(cached)
            )
            for what in ("z", "dz")
        )
        batch = feed.batch(clocks.round)
        entries.append(Entry(clocks.round, batch, z, dz, clocks.uses, clocks.used_at))
    return TrainerState(weights, state, (facts.step, entries))


def put_record_back(facts: TrainerMetadata, tensors: Tensors, workset: Workset) -> None:
    """Go on counting what was done with the table."""
    workset.local_steps, workset.bubbles = facts.local_steps, facts.bubbles
    workset.similarity_B = tensors.pop("similarity")
