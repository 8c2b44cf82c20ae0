"""Updates of weights on a GPU, as Triton kernels.

For an embedding table, the rows of a batch's gradient are sorted by id. The first kernel adds up
the gradients of each id within chunks of sorted positions, the second adds up an id's few partial
sums and updates the table's row. Every shape is fixed by the batch, so nothing is read back from
the device, and sums have one order: the same call gives the same bits. AdaGrad's update of a dense
weight is one pass over its memory. `update_rules` has the operations that are used where Triton is
missing; `gpu_update_rules` uses these.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from celu.engine.gradients import ids_of_rows
from celu.errors import ModelError

_CHUNK = 32
_SEGMENTS = 4  # ids in a program of the second kernel: one would load too little at a time
_BLOCK = 1024
_SGD, _ADAGRAD, _ADAM = 0, 1, 2  # the rules of the second kernel


class SortedGradient:
    """A sparse gradient of an embedding table, sorted by id and summed within chunks.

    Each `apply` updates the rows that the gradient touches, of the table and of a rule's state. A
    rate is a number on the device, since a CUDA graph would repeat one from the host.
    """

    def __init__(self, gradient: Tensor) -> None:
        values_ND = gradient._values().contiguous()
        num, self._width = values_ND.shape
        chunks = triton.cdiv(num, _CHUNK)
        device = values_ND.device
        self._block = triton.next_power_of_2(self._width)
        self._num_warps = 1 if self._block <= 128 else 4
        self._ids_N, order_N = torch.sort(ids_of_rows(gradient))
        is_first_N = torch.ones(num, dtype=torch.int32, device=device)
        torch.ne(self._ids_N[1:], self._ids_N[:-1], out=is_first_N[1:])
        self._segments_N = torch.cumsum(is_first_N, 0, dtype=torch.int32)  # from 1
        self._starts_N = torch.empty(num + 1, dtype=torch.int32, device=device)
        # A segment's part of a chunk is in slot segment + chunk: both ascend, so no two collide.
        self._partial_SD = torch.empty((num + chunks + 1, self._width), device=device)
        _sum_chunks[(chunks,)](
            values_ND,
            order_N,
            self._segments_N,
            self._starts_N,
            self._partial_SD,
            num,
            self._width,
            CHUNK=_CHUNK,
            BLOCK=self._block,
            num_warps=self._num_warps,
        )

    def apply_sgd(self, table: Tensor, rate: Tensor) -> None:
        """Subtract the gradient times a rate."""
        self._apply(_SGD, table, (table, table), rate, (0.0, 0.0, 0.0))

    def apply_adagrad(self, table: Tensor, sums: Tensor, rate: Tensor, epsilon: float) -> None:
        """AdaGrad's update, with its sums of squared gradients."""
        self._apply(_ADAGRAD, table, (sums, sums), rate, (epsilon, 0.0, 0.0))

    def apply_adam(
        self,
        table: Tensor,
        averages: tuple[Tensor, Tensor],
        step_size: Tensor,
        epsilon: float,
        betas: tuple[float, float],
    ) -> None:
        """SparseAdam's update, with its averages of the gradients and of their squares."""
        self._apply(_ADAM, table, averages, step_size, (epsilon, *betas))

    def _apply(
        self,
        rule: int,
        table: Tensor,
        states: tuple[Tensor, Tensor],
        rate: Tensor,
        constants: tuple[float, float, float],
    ) -> None:
        if not table.is_contiguous() or table.shape[1:] != (self._width,):
            raise ModelError(
                f"expected an embedding table of {self._width} contiguous columns, got "
                f"{list(table.shape)}"
            )
        num = len(self._ids_N)
        _update_rows[(triton.cdiv(num, _SEGMENTS),)](
            table,
            *states,
            rate,
            self._ids_N,
            self._segments_N,
            self._starts_N,
            self._partial_SD,
            num,
            self._width,
            *constants,
            RULE=rule,
            CHUNK=_CHUNK,
            SEGMENTS=_SEGMENTS,
            BLOCK=self._block,
            num_warps=self._num_warps,
        )


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sum_chunks(  # type: ignore[no-untyped-def]
    values,
    order,
    segments,
    starts,
    partial,
    num,
    width,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    is_column = column < width
    total = tl.zeros((BLOCK,), tl.float32)
    first = chunk * CHUNK
    before = tl.where(first > 0, tl.load(segments + tl.maximum(first - 1, 0)), 0)
    one = tl.arange(0, 1)
    for index in range(CHUNK):
        # Behind the last position, the last one again, with a gradient of 0.
        position = tl.minimum(first + index, num - 1)
        num_columns = tl.where(first + index < num, width, 0)
        segment = tl.load(segments + position)
        row = tl.load(order + position)
        value = tl.load(values + row * width + column, mask=column < num_columns, other=0.0)
        tl.store(starts + segment + one, position + one, mask=segment + one != before)
        total = tl.where(segment != before, 0.0, total) + value
        # Stored after every position: the last one of a segment stays.
        at = (segment + chunk).to(tl.int64) * width + column
        tl.store(partial + at, total, mask=is_column)
        before = segment


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _update_rows(  # type: ignore[no-untyped-def]
    weight,
    first_state,
    second_state,
    rate,
    ids,
    segments,
    starts,
    partial,
    num,
    width,
    epsilon,
    first_beta,
    second_beta,
    RULE: tl.constexpr,
    CHUNK: tl.constexpr,
    SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    segment = tl.program_id(0) * SEGMENTS + tl.arange(0, SEGMENTS) + 1
    num_segments = tl.load(segments + num - 1)
    if tl.program_id(0) * SEGMENTS < num_segments:
        is_segment = segment <= num_segments
        start = tl.load(starts + segment, mask=is_segment, other=0)
        next_start = tl.load(starts + segment + 1, mask=segment < num_segments, other=num)
        column = tl.arange(0, BLOCK)
        is_column = column < width
        mask = is_segment[:, None] & is_column[None, :]
        gradient = tl.zeros((SEGMENTS, BLOCK), tl.float32)
        first_chunk = start // CHUNK
        more_chunks = (next_start - 1) // CHUNK - first_chunk
        for index in range(tl.max(tl.where(is_segment, more_chunks, 0)) + 1):
            at = (segment + first_chunk + index).to(tl.int64)[:, None] * width + column[None, :]
            is_part = mask & (index <= more_chunks)[:, None]
            gradient += tl.load(partial + at, mask=is_part, other=0.0)
        row = tl.load(ids + start, mask=is_segment, other=0).to(tl.int64)
        at = row[:, None] * width + column[None, :]
        value = tl.load(weight + at, mask=mask, other=0.0)
        lr = tl.load(rate)
        if RULE == 0:  # SGD
            value -= lr * gradient
        elif RULE == 1:  # AdaGrad
            total = tl.load(first_state + at, mask=mask, other=0.0) + gradient * gradient
            tl.store(first_state + at, total, mask=mask)
            value -= lr * (gradient / (tl.sqrt(total) + epsilon))
        else:  # Adam
            mean = tl.load(first_state + at, mask=mask, other=0.0)
            mean += (gradient - mean) * (1 - first_beta)
            square = tl.load(second_state + at, mask=mask, other=0.0)
            square += (gradient * gradient - square) * (1 - second_beta)
            tl.store(first_state + at, mean, mask=mask)
            tl.store(second_state + at, square, mask=mask)
            value -= lr * (mean / (tl.sqrt(square) + epsilon))
        tl.store(weight + at, value, mask=mask)


def apply_dense_adagrad(
    weight: Tensor, sums: Tensor, gradient: Tensor, rate: Tensor, epsilon: float
) -> None:
    """AdaGrad's update of a weight and of its sums of squared gradients."""
    if not (weight.is_contiguous() and sums.is_contiguous()):
        sums.addcmul_(gradient, gradient)
        weight.sub_(rate * (gradient / (sums.sqrt() + epsilon)))
        return
    num = weight.numel()
    _update_dense[(triton.cdiv(num, _BLOCK),)](
        weight, sums, gradient.contiguous(), rate, num, epsilon, BLOCK=_BLOCK
    )


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _update_dense(weight, sums, gradients, rate, num, epsilon, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = at < num
    gradient = tl.load(gradients + at, mask=is_inside, other=0.0)
    total = tl.load(sums + at, mask=is_inside, other=0.0) + gradient * gradient
    value = tl.load(weight + at, mask=is_inside, other=0.0)
    value -= tl.load(rate) * (gradient / (tl.sqrt(total) + epsilon))
    tl.store(sums + at, total, mask=is_inside)
    tl.store(weight + at, value, mask=is_inside)
