"""Gradients of slices, added in the order of the slices.

Floating-point sums depend on their order. All-reduce has another order with each backend and number
of ranks, so it is not used: a rank receives its part of everybody's gradients and adds them in the
order of the ranks, as one process does with its slices. A sparse gradient is first summed by unique
rows within its slice. A parameter without a gradient in one slice counts as zeros there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from celu.errors import ModelError
from celu.ranks.own_rows import OwnRows, leaf_of

Gradients = list[Tensor | None]  # one for each parameter


def take_gradients(parameters: Sequence[nn.Parameter]) -> Gradients:
    """Remove and return the gradients; sparse ones have each row once.

    Raises ModelError for a sharded table that was used in another way than by lookups.
    """
    found: Gradients = []
    for parameter in parameters:
        if isinstance(parameter, OwnRows) and parameter.grad is not None:
            raise ModelError(
                "model.shard: expected embedding tables that are only called, got a model that "
                "uses the weight of one itself, of which a rank has some rows; call the layer, or "
                "set shard = false"
            )
        leaf = leaf_of(parameter)
        gradient, leaf.grad = leaf.grad, None
        is_sparse = gradient is not None and gradient.is_sparse
        found.append(gradient.coalesce() if is_sparse and gradient is not None else gradient)
    return found


@torch.no_grad()
def sum_in_order(parts: Sequence[Gradients]) -> Gradients:
    """The sum of the gradients of some slices, for each parameter."""
    return [_sum(list(of_one)) for of_one in zip(*parts, strict=True)]


def _sum(gradients: list[Tensor | None]) -> Tensor | None:
    present = [g for g in gradients if g is not None]
    if not present:
        return None
    if present[0].is_sparse:
        rows = [g._indices()[0] for g in present]
        return sum_sparse(rows, [g._values() for g in present], present[0].shape)
    return sum_dense([torch.zeros_like(present[0]) if g is None else g for g in gradients])


def sum_dense(gradients: Sequence[Tensor]) -> Tensor:
    """The sum of dense gradients, in their order."""
    total = gradients[0].clone()
    for gradient in gradients[1:]:
        total += gradient
    return total


def sum_sparse(rows: Sequence[Tensor], values: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """The sum of sparse gradients with unique rows, in their order."""
    unique, positions = torch.unique(torch.cat(list(rows)), return_inverse=True)
    total = torch.zeros((len(unique), *shape[1:]), dtype=values[0].dtype, device=values[0].device)
    for where, part in zip(positions.split([len(r) for r in rows]), values, strict=True):
        # A part has each row once, so this is `index_add_`, in a third of its time on a CPU.
        total.index_copy_(0, where, total.index_select(0, where).add_(part))
    return torch.sparse_coo_tensor(unique[None], total, shape, is_coalesced=True)
