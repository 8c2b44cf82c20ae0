"""What happens to gradients between the backward pass and the update: clipping, weight decay.

Both are torch's, for dense gradients. A sparse gradient has only the rows of the batch: they alone
decay, since a step must not cost more than the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from celu.errors import ModelError

_MAX_ROWS = torch.iinfo(torch.int32).max
_EPS = 1e-6  # of torch.nn.utils.clip_grad_norm_


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> None:
    """Scale all gradients so that their common norm is at most `max_norm`.

    Nothing is read back from a GPU.
    """
    _coalesce(parameters)
    values = [_values(p.grad) for p in parameters if p.grad is not None]
    if not values:
        return
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values, 2.0)), 2.0)
    torch._foreach_mul_(values, (max_norm / (total + _EPS)).clamp(max=1.0))


@torch.no_grad()
def add_decay(parameters: Sequence[nn.Parameter], weight_decay: float) -> None:
    """Add the gradient of an L2 penalty: `weight_decay` times the weights."""
    _coalesce(parameters)
    for parameter in parameters:
        if parameter.grad is not None:
            weights = _weights(parameter, parameter.grad)
            _values(parameter.grad).add_(weights, alpha=weight_decay)


@torch.no_grad()
def decay_weights(parameters: Sequence[nn.Parameter], share: float | Tensor) -> None:
    """Reduce the weights that have a gradient by a share of themselves."""
    _coalesce(parameters)
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            decayed = _weights(parameter, gradient).mul_(1 - share)
            parameter.index_copy_(0, gradient._indices()[0], decayed)
        else:
            parameter.mul_(1 - share)


def sum_rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Unique row indices of a sparse gradient and their summed gradients."""
    if gradient.is_coalesced() or not gradient.is_cuda:
        gradient = gradient.coalesce()
        return gradient._indices()[0], gradient._values()
    # On CUDA `coalesce` adds the values of a row serially, and a field with few ids has thousands
    # of them in a batch. The kernel for dense gradients adds them in parallel, and its order is
    # fixed, so the result is deterministic.
    rows, positions = torch.unique(gradient._indices()[0], return_inverse=True)
    values: Tensor = torch.ops.aten.embedding_dense_backward(
        gradient._values(),
        positions,
        num_weights=len(rows),
        padding_idx=-1,
        scale_grad_by_freq=False,
    )
    return rows, values


def ids_of_rows(gradient: Tensor) -> Tensor:
    """The ids of a sparse gradient as int32, which sorts faster.

    Raises ModelError for a table with more rows than that can number: ids would wrap around.
    """
    if len(gradient) > _MAX_ROWS:
        raise ModelError(
            f"expected embedding tables of at most {_MAX_ROWS:,} rows on a GPU, got one of "
            f"{len(gradient):,}; divide it among ranks (shard = true in [model]), or use several"
        )
    return gradient._indices()[0].to(torch.int32)


def _coalesce(parameters: Sequence[nn.Parameter]) -> None:
    """Give each row one entry in the sparse gradients."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse and not gradient.is_coalesced():
            rows, values = sum_rows(gradient)
            parameter.grad = torch.sparse_coo_tensor(
                rows[None], values, gradient.shape, is_coalesced=True
            )


def _values(gradient: Tensor) -> Tensor:
    """The numbers of a gradient; writing to them changes it."""
    return gradient._values() if gradient.is_sparse else gradient


def _weights(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The weights that the gradient has values for: a copy of its rows, if it is sparse."""
    return parameter.index_select(0, gradient._indices()[0]) if gradient.is_sparse else parameter
