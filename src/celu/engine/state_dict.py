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
from celu.engine.checkpoint_tensors import CheckpointTensors, Shape
from celu.engine.optimizer import Optimizer, flatten_state
from celu.engine.state import TrainerState
from celu.errors import CheckpointError
from celu.events import Count
from celu.label_map import LabelMap
from celu.ranks.own_rows import sharded_names
from celu.ranks.slices import Slices
from celu.workset.table import Entry
from celu.workset.workset import Workset

OPTIMIZER = "optimizer."  # how the names of its tensors start


class EntryMetadata(BaseModel):
    """A table entry without its tensors."""

    model_config = ConfigDict(extra="forbid", strict=True)
    round: Count
    uses: Count
    used_at: Annotated[int, Field(ge=-1, le=2**63 - 1)]  # -1: inserted before any local step
    curvature: FiniteFloat  # of the loss, at a host


class TwinMetadata(BaseModel):
    """What a checkpoint says about a guest's twin beside its tensors."""

    model_config = ConfigDict(extra="forbid", strict=True)
    key: str  # the fingerprint of the key of its labels
    labels: str  # their digest
    optimizer: dict[str, int | float | None]


class TrainerMetadata(BaseModel):
    """The part of a trainer's checkpoint that is not tensors. Its fields are a file format."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Count  # the table's clock
    entries: list[EntryMetadata]
    local_steps: Count
    bubbles: Count
    optimizer: dict[str, int | float | None]  # the optimizer state that is not tensors
    row_weights: str | None = None  # a digest, at a guest whose rows do not all count the same
    in_flight: list[Count] = []  # rounds whose Z was sent and whose dZ has not arrived
    label_map: LabelMap | None = None  # at a guest; None: the loss takes labels as they are
    twin: TwinMetadata | None = None  # at a guest that has one
    noise_key: str | None = None  # the fingerprint of the key of a party's noise


def to_state_dict(
    state: TrainerState, workset: Workset, ranks: Slices, rows: int
) -> tuple[TrainerMetadata, dict[str, Tensor]]:
    """Metadata and named tensors of a state and of the workset's counters.

    The first rank has all `rows` rows of what is cached.
    """
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
    tensors |= {f"{OPTIMIZER}{n}": v for n, v in optimizer.items() if isinstance(v, Tensor)}
    for entry in entries:
        for what, stale in (("z", entry.z), ("dz", entry.dz)):
            for k, tensor in enumerate(stale):
                tensors[f"table.{entry.round}.{what}.{k}"] = ranks.gather(tensor, rows)
    if workset.similarity_B is not None:
        tensors["similarity"] = workset.similarity_B
    if workset.reuse_weights:
        tensors["reuse_weights"] = torch.stack(list(workset.reuse_weights))
    return metadata, tensors


def sharded_rows(modules: Mapping[str, nn.Module], optimizer: Optimizer) -> dict[str, int]:
    """The rows of each sharded table, by name, and by how the names of its state start."""
    weights = {f"weights.{n}": own.table_rows for n, own in sharded_names(modules).items()}
    states = {f"{OPTIMIZER}{n}": own.table_rows for n, own in optimizer.shards().items()}
    return weights | states


def parameter_names(modules: Mapping[str, nn.Module]) -> set[str]:
    """The names of the modules' parameters in a checkpoint; buffers are not among them."""
    return {
        f"weights.{which}.{name}"
        for which, module in modules.items()
        for name, _ in module.named_parameters(remove_duplicate=False)
    }


def from_state_dict(
    metadata: TrainerMetadata,
    tensors: CheckpointTensors,
    modules: Mapping[str, nn.Module],
    optimizer: Optimizer,
    loader: BatchLoader,
    shapes: Sequence[Shape],
    own_rows: slice,
) -> TrainerState:
    """The inverse of `to_state_dict`; `shapes` are those of a table entry's Z, one per host.

    The entries get their `own_rows`, those of this rank.

    Raises CheckpointError, which names the tensor, if the modules or the optimizer do not fit.
    """
    weights = tensors.pop_weights("weights.", modules)
    optimizer_state = optimizer.unflatten_state(
        {**metadata.optimizer, **tensors.pop_prefix(OPTIMIZER)}
    )
    entries = []
    for clocks in metadata.entries:  # ascending, as the loader requires
        z, dz = (
            tuple(
                _rows(tensors.pop(f"table.{clocks.round}.{what}.{k}", shape), own_rows)
                for k, shape in enumerate(shapes)
            )
            for what in ("z", "dz")
        )
        batch = loader.batch(clocks.round)
        entries.append(
            Entry(clocks.round, batch, z, dz, clocks.curvature, clocks.uses, clocks.used_at)
        )
    return TrainerState(weights, optimizer_state, (metadata.step, entries))


def _rows(tensor: Tensor, rows: slice) -> Tensor:
    return tensor if rows.stop - rows.start == len(tensor) else tensor[rows].clone()


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
