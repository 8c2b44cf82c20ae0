"""The quantizers' arithmetic on a GPU: one Triton kernel to encode, one to decode.

Before a rotation, torch computes the mean row.

The payload has the same layout and meaning as that of `quantizers`, whose operations are used where
Triton is missing. The rounding noise comes from another generator, so the codes of one tensor may
differ by one step between a CPU and a GPU. On one GPU the same call gives the same bytes.

Launching a kernel takes the CPU longer than executing it takes a GPU, and the longer the more
arguments it has: so the kernels find the parts of a payload themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

_MIN_WIDTH, _MAX_WIDTH = 8, 1 << 13  # a program holds whole rows, and whole bytes, in registers
_TILE = 2048  # numbers in a program


def fits(width: int) -> bool:
    """Whether the kernels take rows of this width."""
    return _MIN_WIDTH <= width <= _MAX_WIDTH


def encode(
    x_BD: Tensor,
    payload: Tensor,
    bits: int,
    *,
    limit: float,
    seed: int | None,
    signs_E: Tensor | None = None,
) -> None:
    """Quantize rows, clamped to +-`limit`, into a payload; without a seed, round to nearest.

    With signs, the mean row is subtracted and the rest multiplied by them and rotated.
    """
    rows, width = x_BD.shape
    shape = _Shape.of(rows, width, signs_E)
    rotates = signs_E is not None
    # No float32 numbers add up to an infinite float64.
    mean_D = x_BD.mean(dim=0, dtype=torch.float64) if rotates else x_BD
    _encode_kernel[shape.grid](
        x_BD,
        payload,
        mean_D,
        signs_E if rotates else x_BD,
        seed or 0,
        rows,
        width,
        limit,
        NOISY=seed is not None,
        BITS=bits,
        ROTATES=rotates,
        ROWS=shape.rows,
        E=shape.padded,
        LOG_E=shape.padded.bit_length() - 1,
    )


def decode(payload: Tensor, into_BD: Tensor, bits: int, *, signs_E: Tensor | None = None) -> None:
    """Write the rows of a payload into a tensor; with signs, of one that was rotated."""
    rows, width = into_BD.shape
    shape = _Shape.of(rows, width, signs_E)
    if payload.data_ptr() % 4:  # where ranges and the mean row cannot be read
        payload = payload.clone()
    _decode_kernel[shape.grid](
        payload,
        into_BD,
        into_BD if signs_E is None else signs_E,
        rows,
        width,
        BITS=bits,
        ROTATES=signs_E is not None,
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
    def of(rows: int, width: int, signs_E: Tensor | None) -> _Shape:
        padded = triton.next_power_of_2(width) if signs_E is None else len(signs_E)
        own = max(1, _TILE // padded)
        return _Shape(own, padded, (triton.cdiv(rows, own),))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _parts(payload, rows, width, BITS: tl.constexpr, ROTATES: tl.constexpr, E: tl.constexpr):  # type: ignore[no-untyped-def]
    # The ranges (the min of each row, then the step of each), the codes, and their bytes per row.
    # A rotated payload starts with the mean row, and its ranges are bfloat16.
    PER_BYTE: tl.constexpr = 8 // BITS
    if ROTATES:
        ranges = (payload + 4 * width).to(tl.pointer_type(tl.bfloat16))
        codes = payload + 4 * (width + rows)
        num_bytes = E // PER_BYTE
    else:
        ranges = payload.to(tl.pointer_type(tl.float32))
        codes = payload + 8 * rows
        num_bytes = (width + PER_BYTE - 1) // PER_BYTE
    return ranges, codes, num_bytes


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
    payload,
    mean,
    signs,
    seed,
    rows,
    width,
    limit,
    NOISY: tl.constexpr,
    BITS: tl.constexpr,
    ROTATES: tl.constexpr,
    ROWS: tl.constexpr,
    E: tl.constexpr,
    LOG_E: tl.constexpr,
):
    PER_BYTE: tl.constexpr = 8 // BITS
    MAX_CODE: tl.constexpr = (1 << BITS) - 1
    ranges, codes, num_bytes = _parts(payload, rows, width, BITS, ROTATES, E)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, E)
    is_row = row < rows
    is_value = is_row[:, None] & (column < width)[None, :]
    offset = row[:, None].to(tl.int64) * width + column[None, :]
    value = tl.load(x + offset, mask=is_value, other=0.0)
    value = tl.minimum(tl.maximum(value, -limit), limit)
    if ROTATES:
        exact = tl.load(mean + column, mask=column < width, other=0.0)
        rounded = tl.minimum(tl.maximum(exact.to(tl.float32), -limit), limit)
        into = payload.to(tl.pointer_type(tl.float32)) + column
        tl.store(into, rounded, mask=(column < width) & (tl.program_id(0) == 0))
        value -= rounded[None, :]
        value *= tl.load(signs + column)[None, :]
        value = _hadamard(value, ROWS, E, LOG_E)
        is_code = is_row[:, None] & (column < E)[None, :]
    else:
        is_code = is_value
    low = tl.min(tl.where(is_code, value, float("inf")), axis=1)
    high = tl.max(tl.where(is_code, value, float("-inf")), axis=1)
    low = tl.where(is_row, low, 0.0)
    high = tl.where(is_row, high, 0.0)
    if ROTATES:  # rounded outward: clamping numbers outside of the range would bias them
        low_bits = low.to(tl.int32, bitcast=True)
        low_bits = tl.where(low_bits < 0, low_bits + 0xFFFF, low_bits) & -0x10000
        low = low_bits.to(tl.float32, bitcast=True)
    step = (high - low) / MAX_CODE
    if ROTATES:
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
    payload,
    x,
    signs,
    rows,
    width,
    BITS: tl.constexpr,
    ROTATES: tl.constexpr,
    ROWS: tl.constexpr,
    E: tl.constexpr,
    LOG_E: tl.constexpr,
):
    PER_BYTE: tl.constexpr = 8 // BITS
    MAX_CODE: tl.constexpr = (1 << BITS) - 1
    ranges, codes, num_bytes = _parts(payload, rows, width, BITS, ROTATES, E)
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
        mean = payload.to(tl.pointer_type(tl.float32)) + column
        value += tl.load(mean, mask=column < width, other=0.0)[None, :]
    offset = row[:, None].to(tl.int64) * width + column[None, :]
    is_value = is_row[:, None] & (column < width)[None, :]
    tl.store(x + offset, value, mask=is_value)
