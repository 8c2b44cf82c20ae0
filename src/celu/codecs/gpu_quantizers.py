"""The quantizers' arithmetic on a GPU: one Triton kernel to encode, one to decode.

Before a rotation, another one computes the mean row.

The payload has the same layout and meaning as that of `quantizers`, whose operations are used where
Triton is missing. The rounding noise comes from another generator, so the codes of one tensor may
differ by one step between a CPU and a GPU. On one GPU the same call gives the same bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

_MIN_WIDTH, _MAX_WIDTH = 8, 1 << 13  # a program holds whole rows, and whole bytes, in registers
_TILE = 2048  # numbers in a program
_MEAN_ROWS, _MEAN_COLUMNS = 512, 8  # which a program of the mean adds up at a time


class Parts(NamedTuple):
    """Views of a payload: the range of each row (min, step), [2, B], and codes, [B, bytes]."""

    ranges: Tensor
    codes: Tensor


class Rotation(NamedTuple):
    """What is subtracted from each row, and the signs that it is multiplied by, [E]."""

    mean_D: Tensor
    signs_E: Tensor


def fits(width: int) -> bool:
    """Whether the kernels take rows of this width."""
    return _MIN_WIDTH <= width <= _MAX_WIDTH


def mean_row(x_BD: Tensor, into_D: Tensor, limit: float) -> None:
    """The mean of rows clamped to +-`limit`, added up in one order."""
    rows, width = x_BD.shape
    _mean_kernel[(triton.cdiv(width, _MEAN_COLUMNS),)](
        x_BD, into_D, rows, width, limit, ROWS=_MEAN_ROWS, COLUMNS=_MEAN_COLUMNS
    )


def encode(
    x_BD: Tensor,
    into: Parts,
    bits: int,
    *,
    limit: float,
    seed: int | None,
    rotation: Rotation | None = None,
) -> None:
    """Quantize rows, clamped to +-`limit`, into a payload; without a seed, round to nearest."""
    rows, width = x_BD.shape
    shape = _Shape.of(rows, width, rotation)
    _encode_kernel[shape.grid](
        x_BD,
        rotation.mean_D if rotation else x_BD,
        rotation.signs_E if rotation else x_BD,
        into.ranges,
        into.codes,
        seed or 0,
        rows,
        width,
        into.codes.shape[1],
        limit,
        NOISY=seed is not None,
        BITS=bits,
        ROTATES=rotation is not None,
        NARROW=into.ranges.dtype == torch.bfloat16,
        ROWS=shape.rows,
        E=shape.padded,
        LOG_E=shape.padded.bit_length() - 1,
    )


def decode(parts: Parts, into_BD: Tensor, bits: int, *, rotation: Rotation | None = None) -> None:
    """Write the rows of a payload into a tensor."""
    rows, width = into_BD.shape
    shape = _Shape.of(rows, width, rotation)
    _decode_kernel[shape.grid](
        into_BD,
        rotation.mean_D if rotation else into_BD,
        rotation.signs_E if rotation else into_BD,
        parts.ranges,
        parts.codes,
        rows,
        width,
        parts.codes.shape[1],
        BITS=bits,
        ROTATES=rotation is not None,
        ROWS=shape.rows,
        E=shape.padded,
        LOG_E=shape.padded.bit_length() - 1,
    )


class _Shape(NamedTuple):
    """How rows are divided between programs."""

    rows: int  # of a program
    padded: int  # the width, as a power of two
    grid: tuple[int]

    @staticmethod
    def of(rows: int, width: int, rotation: Rotation | None) -> _Shape:
        padded = len(rotation.signs_E) if rotation else triton.next_power_of_2(width)
        own = max(1, _TILE // padded)
        return _Shape(own, padded, (triton.cdiv(rows, own),))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _mean_kernel(  # type: ignore[no-untyped-def]
    x,
    mean,
    rows,
    width,
    limit,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < width
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, rows, ROWS):
        offset = (first + row)[:, None].to(tl.int64) * width + column[None, :]
        mask = (first + row < rows)[:, None] & is_column[None, :]
        value = tl.load(x + offset, mask=mask, other=0.0)
        total += tl.minimum(tl.maximum(value, -limit), limit)
    tl.store(mean + column, tl.sum(total, axis=0) / rows, mask=is_column)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _hadamard(x, ROWS: tl.constexpr, E: tl.constexpr, LOG_E: tl.constexpr):  # type: ignore[no-untyped-def]
    # Each step adds and subtracts neighbours, and moves sums to the front and differences to the
    # back. After LOG_E steps every number is back in its place.
    for _ in tl.static_range(LOG_E):
        a, b = tl.split(tl.reshape(x, (ROWS, E // 2, 2)))
        x = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (ROWS, E))
    return x / tl.sqrt(E * 1.0)


@triton.jit(do_not_specialize=["seed"])  # type: ignore[untyped-decorator, unused-ignore]
def _encode_kernel(  # type: ignore[no-untyped-def]
    x,
    mean,
    signs,
    ranges,
    codes,
    seed,
    rows,
    width,
    num_bytes,
    limit,
    NOISY: tl.constexpr,
    BITS: tl.constexpr,
    ROTATES: tl.constexpr,
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    E: tl.constexpr,
    LOG_E: tl.constexpr,
):
    PER_BYTE: tl.constexpr = 8 // BITS
    MAX_CODE: tl.constexpr = (1 << BITS) - 1
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, E)
    is_row = row < rows
    is_value = is_row[:, None] & (column < width)[None, :]
    offset = row[:, None].to(tl.int64) * width + column[None, :]
    value = tl.load(x + offset, mask=is_value, other=0.0)
    value = tl.minimum(tl.maximum(value, -limit), limit)
    if ROTATES:
        value -= tl.load(mean + column, mask=column < width, other=0.0)[None, :]
        value *= tl.load(signs + column)[None, :]
        value = _hadamard(value, ROWS, E, LOG_E)
        is_code = is_row[:, None] & (column < E)[None, :]
    else:
        is_code = is_value
    low = tl.min(tl.where(is_code, value, float("inf")), axis=1)
    high = tl.max(tl.where(is_code, value, float("-inf")), axis=1)
    low = tl.where(is_row, low, 0.0)
    high = tl.where(is_row, high, 0.0)
    if NARROW:  # rounded outward: clamping numbers outside of the range would bias them
        low_bits = low.to(tl.int32, bitcast=True)
        low_bits = tl.where(low_bits < 0, low_bits + 0xFFFF, low_bits) & -0x10000
        low = low_bits.to(tl.float32, bitcast=True)
    step = (high - low) / MAX_CODE
    if NARROW:
        step_bits = (step.to(tl.int32, bitcast=True) + 0xFFFF) & -0x10000
        step = step_bits.to(tl.float32, bitcast=True)
    tl.store(ranges + row, low, mask=is_row)
    tl.store(ranges + rows + row, step, mask=is_row)
    safe = tl.where(step > 0, step, 1.0)  # step 0: all numbers of the row are equal
    level = (value - low[:, None]) / safe[:, None]
    if NOISY:
        level += tl.rand(seed, row[:, None] * E + column[None, :]) - 0.5
    level = tl.minimum(tl.maximum(level + 0.5, 0.0), MAX_CODE + 0.5)
    code = tl.where(is_code, level.to(tl.int32), 0)
    if PER_BYTE > 1:
        place = tl.arange(0, PER_BYTE) * BITS
        code = tl.sum(tl.reshape(code, (ROWS, E // PER_BYTE, PER_BYTE)) << place, axis=2)
    byte = tl.arange(0, E // PER_BYTE)
    at = row[:, None].to(tl.int64) * num_bytes + byte[None, :]
    tl.store(codes + at, code.to(tl.uint8), mask=is_row[:, None] & (byte < num_bytes)[None, :])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _decode_kernel(  # type: ignore[no-untyped-def]
    x,
    mean,
    signs,
    ranges,
    codes,
    rows,
    width,
    num_bytes,
    BITS: tl.constexpr,
    ROTATES: tl.constexpr,
    ROWS: tl.constexpr,
    E: tl.constexpr,
    LOG_E: tl.constexpr,
):
    PER_BYTE: tl.constexpr = 8 // BITS
    MAX_CODE: tl.constexpr = (1 << BITS) - 1
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, E)
    is_row = row < rows
    byte = column // PER_BYTE
    is_code = is_row[:, None] & (byte < num_bytes)[None, :]
    at = row[:, None].to(tl.int64) * num_bytes + byte[None, :]
    packed = tl.load(codes + at, mask=is_code, other=0).to(tl.int32)
    code = (packed >> ((column % PER_BYTE) * BITS)[None, :]) & MAX_CODE
    low = tl.load(ranges + row, mask=is_row, other=0.0).to(tl.float32)
    step = tl.load(ranges + rows + row, mask=is_row, other=0.0).to(tl.float32)
    value = code.to(tl.float32) * step[:, None] + low[:, None]
    if ROTATES:
        value = _hadamard(value, ROWS, E, LOG_E)
        value *= tl.load(signs + column)[None, :]
        value += tl.load(mean + column, mask=column < width, other=0.0)[None, :]
    offset = row[:, None].to(tl.int64) * width + column[None, :]
    is_value = is_row[:, None] & (column < width)[None, :]
    tl.store(x + offset, value, mask=is_value)
