"""How far rows have turned and moved, on a GPU: one Triton kernel that reads every tensor once.

`weighting` has the operations that are used where Triton is missing. Results equal those within
rounding, and the same call gives the same bits.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

_MAX_WIDTH = 1 << 13  # a program holds whole rows in registers
_TILE = 2048  # numbers in a program


def fits(x_BD: Tensor) -> bool:
    """Whether the kernel takes tensors like this one."""
    return x_BD.is_cuda and x_BD.dtype == torch.float32 and 0 < x_BD.shape[1] <= _MAX_WIDTH


def cosine_similarity(a_BD: Tensor, b_BD: Tensor, min_norm: float) -> Tensor:
    """The cosine of each pair of rows, [B]; norms below `min_norm` count as that."""
    cosine_B = torch.empty(len(a_BD), device=a_BD.device)
    _launch(a_BD, b_BD, None, min_norm, cosine_B, None)
    return cosine_B


def compare(
    fresh_BD: Tensor, stale_BD: Tensor, dz_BD: Tensor, min_norm: float
) -> tuple[Tensor, Tensor]:
    """dz . (fresh - stale) of each row, and the cosine of fresh and stale, [B] both."""
    moved_B, cosine_B = torch.empty((2, len(fresh_BD)), device=fresh_BD.device)
    _launch(fresh_BD, stale_BD, dz_BD, min_norm, cosine_B, moved_B)
    return moved_B, cosine_B


def _launch(
    a_BD: Tensor,
    b_BD: Tensor,
    dz_BD: Tensor | None,
    min_norm: float,
    cosine_B: Tensor,
    moved_B: Tensor | None,
) -> None:
    rows, width = a_BD.shape
    padded = triton.next_power_of_2(width)
    own = max(1, _TILE // padded)  # rows of a program
    _compare_kernel[(triton.cdiv(rows, own),)](
        a_BD.contiguous(),
        b_BD.contiguous(),
        a_BD if dz_BD is None else dz_BD.contiguous(),
        cosine_B,
        cosine_B if moved_B is None else moved_B,
        rows,
        width,
        min_norm,
        HAS_DZ=dz_BD is not None,
        ROWS=own,
        E=padded,
    )


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _compare_kernel(  # type: ignore[no-untyped-def]
    a,
    b,
    dz,
    cosine,
    moved,
    rows,
    width,
    min_norm,
    HAS_DZ: tl.constexpr,
    ROWS: tl.constexpr,
    E: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, E)
    is_row = row < rows
    mask = is_row[:, None] & (column < width)[None, :]
    at = row[:, None].to(tl.int64) * width + column[None, :]
    x = tl.load(a + at, mask=mask, other=0.0)
    y = tl.load(b + at, mask=mask, other=0.0)
    if HAS_DZ:
        product = tl.load(dz + at, mask=mask, other=0.0) * (x - y)
        tl.store(moved + row, tl.sum(product, axis=1), mask=is_row)
    x_norm = tl.maximum(tl.sqrt(tl.sum(x * x, axis=1)), min_norm)
    y_norm = tl.maximum(tl.sqrt(tl.sum(y * y, axis=1)), min_norm)
    # Rows of unit length first: the product of two tiny norms could underflow.
    found = tl.sum((x / x_norm[:, None]) * (y / y_norm[:, None]), axis=1)
    tl.store(cosine + row, found, mask=is_row)
