"""Rows of an embedding table on a GPU, as one Triton kernel that copies several at a time.

`tower` uses the operations of torch where Triton is missing. The rows are the same, and so is the
gradient: a sparse one, with a row for each id of the batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor, nn

_MAX_WIDTH = 1 << 12
_TILE = 2048  # numbers in a program


def fits(table: nn.Embedding) -> bool:
    """Whether the kernel takes this table: a plain one whose gradient is sparse."""
    weight = table.weight
    return (
        type(table) is nn.Embedding
        and type(weight) is nn.Parameter
        and table.sparse
        and table.padding_idx is None
        and table.max_norm is None
        and not table.scale_grad_by_freq
        and weight.dtype == torch.float32
        and weight.is_contiguous()
        and weight.shape[1] <= _MAX_WIDTH
    )


def gather(weight: Tensor, ids_BC: Tensor, offsets_C: Tensor) -> Tensor:
    """The rows of each column's ids, which start at its offset, side by side, [B, C * D].

    They are NaN for an id that is outside of the table.
    """
    found: Tensor = _Gather.apply(weight, ids_BC, offsets_C)  # type: ignore[no-untyped-call]
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids_BC: Tensor, offsets_C: Tensor) -> Tensor:
        (rows, columns), width = ids_BC.shape, weight.shape[1]
        found = torch.empty((rows, columns * width), device=weight.device)
        places = torch.empty((1, rows * columns), dtype=torch.int64, device=weight.device)
        padded = triton.next_power_of_2(width)
        own = max(1, _TILE // padded)  # ids of a program
        _gather_kernel[(triton.cdiv(rows * columns, own),)](
            weight,
            ids_BC.contiguous(),
            offsets_C,
            places,
            found,
            rows * columns,
            len(weight),
            columns,
            width,
            IDS=own,
            E=padded,
        )
        ctx.shape = weight.shape
        ctx.save_for_backward(places)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        values = gradients[0].reshape(-1, ctx.shape[1])
        sparse = torch.sparse_coo_tensor(places, values, ctx.shape, check_invariants=False)
        return sparse, None, None


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gather_kernel(  # type: ignore[no-untyped-def]
    weight,
    ids,
    offsets,
    places,
    found,
    num,
    num_rows,
    columns,
    width,
    IDS: tl.constexpr,
    E: tl.constexpr,
):
    position = tl.program_id(0) * IDS + tl.arange(0, IDS)
    is_id = position < num
    row = tl.load(ids + position, mask=is_id, other=0)
    row += tl.load(offsets + position % columns, mask=is_id, other=0)
    is_row = (row >= 0) & (row < num_rows)
    row = tl.where(is_row, row, 0)
    tl.store(places + position, row, mask=is_id)
    column = tl.arange(0, E)
    mask = is_id[:, None] & (column < width)[None, :]
    source = weight + row[:, None] * width + column[None, :]
    value = tl.load(source, mask=mask & is_row[:, None], other=float("nan"))
    at = position.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(found + at, value, mask=mask)
