"""Numbers rounded at random to one of a few levels between the extremes of their row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from celu.codecs.codec import check_size, from_bytes

# Rows are worked on some at a time, so that what lies between two operations stays in a processor's
# cache. An accelerator works on all at once: there it is the number of operations that counts.
_CHUNK = 1 << 16


class RowLevels:
    """`bits` a number (8, 4 or 2), and eight bytes a row for where its levels lie."""

    _range_dtype = torch.float32

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._top = 2**bits - 1
        self._in_a_byte = 8 // bits

    def max_bytes(self, rows: int, width: int) -> int:
        """See `Codec`."""
        return rows * (2 * self._range_dtype.itemsize + -(-width // self._in_a_byte))

    def encode(self, x_BD: Tensor, noise: torch.Generator) -> Tensor:
        """See `Codec`."""
        payload = torch.empty(self.max_bytes(*x_BD.shape), dtype=torch.uint8, device=x_BD.device)
        ranges, codes = self._parts(payload, len(x_BD))
        chance_BD = _chance(x_BD.shape, noise)
        for some in _chunks(x_BD):
            self._encode_some(x_BD[some], chance_BD[some], ranges[:, some], codes[some])
        return payload

    def decode(self, payload: Tensor, rows: int, width: int) -> Tensor:
        """See `Codec`."""
        check_size(payload, self.max_bytes(rows, width))
        x_BD = torch.empty((rows, width), device=payload.device)
        ranges, codes = self._parts(payload, rows)
        for some in _chunks(x_BD):
            x_BD[some] = self._decode_some(ranges[:, some], codes[some], width)
        return x_BD

    def _parts(self, payload: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Where the levels of each row lie, [2, B] (least, step), and the codes, [B, bytes]."""
        size = 2 * self._range_dtype.itemsize * rows
        ranges = from_bytes(payload[:size], self._range_dtype).view(2, rows)
        return ranges, payload[size:].view(rows, -1)

    def _encode_some(self, x_BD: Tensor, chance_BD: Tensor, ranges: Tensor, codes: Tensor) -> None:
        # Outward, so that no number lies beyond its row's levels, where rounding would be biased.
        low_B, high_B = _no_greater(x_BD.amin(dim=1), self._range_dtype), x_BD.amax(dim=1)
        step_B = _no_less((high_B - low_B) / self._top, self._range_dtype)
        ranges[0], ranges[1] = low_B, step_B
        safe_B = torch.where(step_B > 0, step_B, torch.ones_like(step_B))  # a row of one number
        exact_BD = (x_BD - low_B[:, None]).div_(safe_B[:, None])
        raised_BD = exact_BD.add_(chance_BD, alpha=2**-16).add_(0.5).clamp_(0, self._top + 0.5)
        # By way of int32, which is what processors convert quickly.
        codes.copy_(self._pack(raised_BD.to(torch.int32).to(torch.uint8)))

    def _decode_some(self, ranges: Tensor, codes: Tensor, width: int) -> Tensor:
        low_B, step_B = ranges.float()
        codes_BD = self._unpack(codes, width)
        # Two operations, each rounded: fused into one, the bits would depend on the machine.
        x_BD: Tensor = codes_BD.float().mul_(step_B[:, None])
        return x_BD.add_(low_B[:, None])

    def _pack(self, codes_BD: Tensor) -> Tensor:
        """Several codes in a byte, the first in its lowest bits."""
        if self._in_a_byte == 1:
            return codes_BD
        short = -codes_BD.shape[1] % self._in_a_byte
        parts = functional.pad(codes_BD, (0, short)).reshape(len(codes_BD), -1, self._in_a_byte)
        packed = parts[:, :, 0].clone()
        for place in range(1, self._in_a_byte):
            packed |= parts[:, :, place] << (place * self._bits)
        return packed

    def _unpack(self, packed: Tensor, width: int) -> Tensor:
        if self._in_a_byte == 1:
            return packed
        parts = [(packed >> (p * self._bits)) & self._top for p in range(self._in_a_byte)]
        return torch.stack(parts, dim=2).reshape(len(packed), -1)[:, :width]


class RotatedLevels(RowLevels):
    """The same, after two changes that leave rows alike and without outliers.

    The batch's mean row is sent apart and subtracted; the rest of each row is rotated by a Hadamard
    matrix with fixed random signs, which spreads each large number over the whole row. What is left
    lies around zero, so four bytes a row say well enough where its levels lie.
    """

    _range_dtype = torch.bfloat16

    def max_bytes(self, rows: int, width: int) -> int:
        """See `Codec`."""
        return 4 * width + super().max_bytes(rows, _rotated_width(width))

    def encode(self, x_BD: Tensor, noise: torch.Generator) -> Tensor:
        """See `Codec`."""
        rows, width = x_BD.shape
        payload = torch.empty(self.max_bytes(rows, width), dtype=torch.uint8, device=x_BD.device)
        mean_D = from_bytes(payload[: 4 * width])
        mean_D.copy_(x_BD.mean(dim=0))
        ranges, codes = self._parts(payload[4 * width :], rows)
        rotated = _rotated_width(width)
        chance_BE, signs_E = _chance((rows, rotated), noise), _signs(rotated, x_BD.device)
        for some in _chunks(chance_BE):
            rest_BE = functional.pad(x_BD[some] - mean_D, (0, rotated - width)).mul_(signs_E)
            self._encode_some(hadamard(rest_BE), chance_BE[some], ranges[:, some], codes[some])
        return payload

    def decode(self, payload: Tensor, rows: int, width: int) -> Tensor:
        """See `Codec`."""
        check_size(payload, self.max_bytes(rows, width))
        mean_D = from_bytes(payload[: 4 * width])
        ranges, codes = self._parts(payload[4 * width :], rows)
        rotated = _rotated_width(width)
        x_BD, signs_E = (
            torch.empty((rows, width), device=payload.device),
            _signs(rotated, payload.device),
        )
        for some in _chunks(x_BD):
            rest_BE = hadamard(self._decode_some(ranges[:, some], codes[some], rotated))
            torch.add(rest_BE.mul_(signs_E)[:, :width], mean_D, out=x_BD[some])
        return x_BD


def hadamard(x_BE: Tensor) -> Tensor:
    """The orthogonal Walsh-Hadamard transform of rows of 2^k numbers; it undoes itself.

    By sums and differences, whose order is fixed: a matrix product's is not. Columns come first in
    memory meanwhile, so that each step adds and subtracts long runs of numbers.
    """
    rows, width = x_BE.shape
    now = x_BE.t().contiguous()
    then = torch.empty_like(now)
    half = 1
    while half < width:
        a, b = now.view(-1, 2, half * rows).unbind(dim=1)
        sums, differences = then.view(-1, 2, half * rows).unbind(dim=1)
        torch.add(a, b, out=sums)
        torch.sub(a, b, out=differences)
        now, then = then, now
        half *= 2
    return now.mul_(width**-0.5).t().contiguous()


def _no_greater(x_B: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers, or the next lesser ones that the type has; still as float32."""
    if dtype == torch.float32:
        return x_B
    bits = x_B.view(torch.int32)
    return torch.where(bits < 0, bits + 0xFFFF, bits).bitwise_and_(-0x10000).view(torch.float32)


def _no_less(x_B: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers that are not negative, or the next greater ones that the type has."""
    if dtype == torch.float32:
        return x_B
    return (x_B.view(torch.int32) + 0xFFFF).bitwise_and_(-0x10000).view(torch.float32)


def _chunks(x_BD: Tensor) -> Iterator[slice]:
    rows, width = x_BD.shape
    size = max(1, _CHUNK // width) if x_BD.device.type == "cpu" else rows
    return (slice(start, start + size) for start in range(0, rows, size))


def _chance(shape: tuple[int, ...], noise: torch.Generator) -> Tensor:
    """Chances from -1/2 to below 1/2, times 65536: whole numbers, which are quick to make."""
    count = math.prod(shape)
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=noise.device)
    halves = words.random_(-(2**63), None, generator=noise).view(torch.int16)[:count]
    return halves.reshape(shape)


def _rotated_width(width: int) -> int:
    return 1 << (width - 1).bit_length()


@cache
def _signs(width: int, device: torch.device) -> Tensor:
    """+1 and -1, the same at all parties for good: the raw stream of PCG64 is fixed."""
    bits = np.random.PCG64(np.random.SeedSequence(width)).random_raw(width) & np.uint64(1)
    return torch.from_numpy(1.0 - 2.0 * bits.astype(np.float32)).to(device)
