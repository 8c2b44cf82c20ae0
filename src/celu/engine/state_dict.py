"""A trainer's state as named tensors and metadata, for checkpoints.

Batches are not stored: a table entry stores its round, and the batch loader gathers the rows again.
A loaded state is checked against the live model, name by name, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from torch import Tensor, nn

from celu.data.batch_loader import BatchLoader
from celu.engine.optimizer import Optimizer, flatten_state
from celu.engine.state import TrainerState
from celu.errors import CheckpointError
from celu.events import Count
from celu.label_map import LabelMap
from celu.workset.table import Entry
from celu.workset.workset import Workset

Shape = tuple[int, ...]


class EntryMetadata(BaseModel):
    """A table entry without its tensors."""

    model_config = ConfigDict(extra="forbid", strict=True)
    round: Count
    uses: Count
    used_at: Annotated[int, Field(ge=-1, le=2**63 - 1)]  # -1: inserted before any local step
    curvature: FiniteFloat  # of the loss, at a host


class TrainerMetadata(BaseModel):
    """The part of a trainer's checkpoint that is not tensors. Its fields are a file format."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Count  # the table's clock
    entries: list[EntryMetadata]
    local_steps: Count
    bubbles: Count
    optimizer: dict[str, int | float | None]  # the optimizer state that is not tensors
    in_flight: list[Count] = []  # rounds whose Z was sent and whose dZ has not arrived
    label_map: LabelMap | None = None  # at a guest; None: the loss takes labels as they are


def to_state_dict(
    state: TrainerState, workset: Workset
) -> tuple[TrainerMetadata, dict[str, Tensor]]:
    """Metadata and named tensors of a state and of the workset's counters."""
    step, entries = state.table
    optimizer = flatten_state(state.optimizer)
    metadata = TrainerMetadata(
        step=step,
        entries=[
            EntryMetadata(round=e.round, uses=e.uses, used_at=e.used_at, curvature=e.curvature)
            for e in entries
        ],
        local_steps=workset.local_steps,
        bubbles=workset.bubbles,
        optimizer={n: value for n, value in optimizer.items() if not isinstance(value, Tensor)},
    )
    tensors = {
        f"weights.{which}.{name}": tensor
        for which, weights in state.modules.items()
        for name, tensor in weights.items()
    }
    tensors |= {f"optimizer.{n}": v for n, v in optimizer.items() if isinstance(v, Tensor)}
    for entry in entries:
        for what, stale in (("z", entry.z), ("dz", entry.dz)):
            tensors |= {f"table.{entry.round}.{what}.{k}": t for k, t in enumerate(stale)}
    if workset.similarity_B is not None:
        tensors["similarity"] = workset.similarity_B
    if workset.reuse_weights:
        tensors["reuse_weights"] = torch.stack(list(workset.reuse_weights))
    return metadata, tensors


def parameter_names(modules: Mapping[str, nn.Module]) -> set[str]:
    """The names of the modules' parameters in a checkpoint; buffers are not among them."""
    return {
        f"weights.{which}.{name}"
        for which, module in modules.items()
        for name, _ in module.named_parameters(remove_duplicate=False)
    }


class CheckpointTensors:
    """The tensors of a checkpoint, removed one by one as they are used.

    Raises CheckpointError for a missing, misshapen or unused tensor.
    """

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self._tensors = dict(tensors)
        self._device = device

    def pop(self, name: str, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        """Remove and return a tensor, which must have this shape and dtype."""
        tensor = self._tensors.pop(name, None)
        if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != dtype:
            got = "none" if tensor is None else f"{tensor.dtype} of {list(tensor.shape)}"
            raise CheckpointError(
                f"{name}: the checkpoint does not fit the model: expected {dtype} of "
                f"{list(shape)}, got {got}. Restore the model and settings that the run started "
                "with"
            )
        return tensor.to(self._device)

    def pop_optional(self, name: str) -> Tensor | None:
        """Remove and return a tensor of any shape, or None if there is none."""
        tensor = self._tensors.pop(name, None)
        return None if tensor is None else tensor.to(self._device)

    def pop_prefix(self, prefix: str) -> dict[str, Tensor]:
        """Remove and return all tensors with this prefix, by the rest of their names."""
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {n.removeprefix(prefix): self._tensors.pop(n).to(self._device) for n in names}

    def check_empty(self) -> None:
        """Raise CheckpointError if tensors are left that the model does not have."""
        if self._tensors:
            raise CheckpointError(
                f"{', '.join(sorted(self._tensors)[:5])}: the checkpoint has tensors that the "
                "model does not have. Restore the model and settings that the run started with"
            )


def from_state_dict(
    metadata: TrainerMetadata,
    tensors: CheckpointTensors,
    modules: Mapping[str, nn.Module],
    optimizer: Optimizer,
    loader: BatchLoader,
    shapes: Sequence[Shape],
) -> TrainerState:
    """The inverse of `to_state_dict`; `shapes` are those of a table entry's Z, one per host.

    Raises CheckpointError, which names the tensor, if the modules or the optimizer do not fit.
    """
    weights = {
        which: {
            name: tensors.pop(f"weights.{which}.{name}", tuple(live.shape), live.dtype)
            for name, live in module.state_dict().items()
        }
        for which, module in modules.items()
    }
    optimizer_state = optimizer.unflatten_state(
        {**metadata.optimizer, **tensors.pop_prefix("optimizer.")}
    )
    entries = []
    for clocks in metadata.entries:  # ascending, as the loader requires
        z, dz = (
            tuple(
                tensors.pop(f"table.{clocks.round}.{what}.{k}", shape)
                for k, shape in enumerate(shapes)
            )
            for what in ("z", "dz")
        )
        batch = loader.batch(clocks.round)
        entries.append(
            Entry(clocks.round, batch, z, dz, clocks.curvature, clocks.uses, clocks.used_at)
        )
    return TrainerState(weights, optimizer_state, (metadata.step, entries))


def restore_counters(
    metadata: TrainerMetadata, tensors: CheckpointTensors, workset: Workset
) -> None:
    """Restore the workset's counters from a checkpoint."""
    workset.local_steps, workset.bubbles = metadata.local_steps, metadata.bubbles
    similarity_B = tensors.pop_optional("similarity")
    if similarity_B is not None and (similarity_B.dim() != 1 or not len(similarity_B)):
        raise CheckpointError(
            "similarity: expected one value per row in the checkpoint, "
            f"got {list(similarity_B.shape)}"
        )
    workset.similarity_B = similarity_B
    reuse_weights = tensors.pop_optional("reuse_weights")
    if reuse_weights is not None and reuse_weights.dim() != 1:
        raise CheckpointError(
            "reuse_weights: expected one value per batch in the checkpoint, "
            f"got {list(reuse_weights.shape)}"
        )
    workset.reuse_weights.clear()
    workset.reuse_weights.extend([] if reuse_weights is None else reuse_weights.unbind())
