"""Quantizers: rounding to evenly spaced levels between the min and max of a row.

On a GPU with Triton, `gpu_quantizers` does the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from celu.codecs.codec import check_size, from_bytes

# On a CPU rows are processed in chunks, so that intermediate results stay in the cache. On a GPU
# without Triton all rows are processed at once, since kernel launches dominate.
_CHUNK = 1 << 16


class RowQuantizer:
    """`bits` per number (8, 4 or 2), and eight bytes per row for its range."""

    _range_dtype = torch.float32

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._max_code = 2**bits - 1
        self._per_byte = 8 // bits

    def max_bytes(self, rows: int, width: int) -> int:
        """See `Codec`."""
        return rows * (2 * self._range_dtype.itemsize + -(-width // self._per_byte))

    def encode(self, x_BD: Tensor, generator: torch.Generator | None) -> Tensor:
        """See `Codec`."""
        payload = torch.empty(self.max_bytes(*x_BD.shape), dtype=torch.uint8, device=x_BD.device)
        if (kernels := _kernels(x_BD.device, x_BD.shape[1])) is not None:
            seed = _seed_of(generator)
            kernels.encode(x_BD, payload, self._bits, limit=_limit(4), seed=seed)
            return payload
        ranges, codes = self._parts(payload, len(x_BD))
        x_BD = _clamp(x_BD, headroom=4)
        noise_BD = _rounding_noise(x_BD.shape, generator, x_BD.device)
        for chunk in _chunks(x_BD):
            self._encode_rows(x_BD[chunk], noise_BD[chunk], ranges[:, chunk], codes[chunk])
        return payload

    def decode(self, payload: Tensor, rows: int, width: int) -> Tensor:
        """See `Codec`."""
        check_size(payload, self.max_bytes(rows, width))
        x_BD = torch.empty((rows, width), device=payload.device)
        if (kernels := _kernels(payload.device, width)) is not None:
            kernels.decode(payload, x_BD, self._bits)
            return x_BD
        ranges, codes = self._parts(payload, rows)
        for chunk in _chunks(x_BD):
            x_BD[chunk] = self._decode_rows(ranges[:, chunk], codes[chunk], width)
        return x_BD

    def bound(self, payload: Tensor, rows: int, width: int) -> float:
        """See `Codec`."""
        check_size(payload, self.max_bytes(rows, width))
        return self._bound_of_ranges(payload, rows)

    def _bound_of_ranges(self, payload: Tensor, rows: int) -> float:
        ranges, _ = self._parts(payload, rows)
        low_B, step_B = (part.double().numpy() for part in ranges)
        return float(np.abs(low_B).max() + self._max_code * np.abs(step_B).max())

    def _parts(self, payload: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Views of a payload: the range of each row, [2, B] (min, step), and codes, [B, bytes]."""
        size = 2 * self._range_dtype.itemsize * rows
        ranges = from_bytes(payload[:size], self._range_dtype).view(2, rows)
        return ranges, payload[size:].view(rows, -1)

    def _encode_rows(self, x_BD: Tensor, noise_BD: Tensor, ranges: Tensor, codes: Tensor) -> None:
        # The range is rounded outward: clamping numbers outside of it would bias them.
        low_B, high_B = _round_down(x_BD.amin(dim=1), self._range_dtype), x_BD.amax(dim=1)
        step_B = _round_up((high_B - low_B) / self._max_code, self._range_dtype)
        ranges[0], ranges[1] = low_B, step_B
        safe_B = torch.where(
            step_B > 0, step_B, torch.ones_like(step_B)
        )  # step 0: all numbers of the row are equal
        exact_BD = (x_BD - low_B[:, None]).div_(safe_B[:, None])
        noisy_BD = exact_BD.add_(noise_BD, alpha=2**-16).add_(0.5).clamp_(0, self._max_code + 0.5)
        # Via int32, to which CPUs convert floats quickly.
        codes.copy_(self._pack(noisy_BD.to(torch.int32).to(torch.uint8)))

    def _decode_rows(self, ranges: Tensor, codes: Tensor, width: int) -> Tensor:
        low_B, step_B = ranges.float()
        codes_BD = self._unpack(codes, width)
        # Two operations: a fused multiply-add would make the bits depend on the machine.
        x_BD: Tensor = codes_BD.float().mul_(step_B[:, None])
        return x_BD.add_(low_B[:, None])

    def _pack(self, codes_BD: Tensor) -> Tensor:
        """Pack several codes into a byte, the first into the lowest bits."""
        if self._per_byte == 1:
            return codes_BD
        padding = -codes_BD.shape[1] % self._per_byte
        parts = functional.pad(codes_BD, (0, padding)).reshape(len(codes_BD), -1, self._per_byte)
        packed = parts[:, :, 0].clone()
        for index in range(1, self._per_byte):
            packed |= parts[:, :, index] << (index * self._bits)
        return packed

    def _unpack(self, packed: Tensor, width: int) -> Tensor:
        if self._per_byte == 1:
            return packed
        parts = [(packed >> (p * self._bits)) & self._max_code for p in range(self._per_byte)]
        return torch.stack(parts, dim=2).reshape(len(packed), -1)[:, :width]


class RotatedQuantizer(RowQuantizer):
    """Quantizes rows after two transforms that remove outliers.

    The batch's mean row is sent separately and subtracted. The rest of each row is rotated by a
    Hadamard matrix with fixed random signs, which spreads an outlier over the whole row. The result
    is centered around zero, so a bfloat16 range (four bytes per row) is precise enough.
    """

    _range_dtype = torch.bfloat16

    def max_bytes(self, rows: int, width: int) -> int:
        """See `Codec`."""
        return 4 * width + super().max_bytes(rows, _rotated_width(width))

    def bound(self, payload: Tensor, rows: int, width: int) -> float:
        """See `Codec`."""
        check_size(payload, self.max_bytes(rows, width))
        mean_D, rest = from_bytes(payload[: 4 * width]).double().numpy(), payload[4 * width :]
        # A rotation adds up E numbers before it scales the sum.
        rotated = _rotated_width(width) * self._bound_of_ranges(rest, rows)
        return float(np.abs(mean_D).max()) + rotated

    def encode(self, x_BD: Tensor, generator: torch.Generator | None) -> Tensor:
        """See `Codec`."""
        rows, width = x_BD.shape
        payload = torch.empty(self.max_bytes(rows, width), dtype=torch.uint8, device=x_BD.device)
        rotated = _rotated_width(width)
        # The mean adds up rows; the rotations, one each way, add up E numbers and E**0.5 of these.
        headroom = 8 * max(rows, rotated**1.5)
        signs_E = _signs(rotated, x_BD.device)
        if (kernels := _kernels(x_BD.device, rotated)) is not None:
            limit, seed = _limit(headroom), _seed_of(generator)
            kernels.encode(x_BD, payload, self._bits, limit=limit, seed=seed, signs_E=signs_E)
            return payload
        mean_D = from_bytes(payload[: 4 * width])
        ranges, codes = self._parts(payload[4 * width :], rows)
        x_BD = _clamp(x_BD, headroom)
        mean_D.copy_(x_BD.mean(dim=0))
        noise_BE = _rounding_noise((rows, rotated), generator, x_BD.device)
        for chunk in _chunks(noise_BE):
            rest_BE = functional.pad(x_BD[chunk] - mean_D, (0, rotated - width)).mul_(signs_E)
            self._encode_rows(hadamard(rest_BE), noise_BE[chunk], ranges[:, chunk], codes[chunk])
        return payload

    def decode(self, payload: Tensor, rows: int, width: int) -> Tensor:
        """See `Codec`."""
        check_size(payload, self.max_bytes(rows, width))
        rotated = _rotated_width(width)
        x_BD = torch.empty((rows, width), device=payload.device)
        signs_E = _signs(rotated, payload.device)
        if (kernels := _kernels(payload.device, rotated)) is not None:
            kernels.decode(payload, x_BD, self._bits, signs_E=signs_E)
            return x_BD
        mean_D = from_bytes(payload[: 4 * width])
        ranges, codes = self._parts(payload[4 * width :], rows)
        for chunk in _chunks(x_BD):
            rest_BE = hadamard(self._decode_rows(ranges[:, chunk], codes[chunk], rotated))
            torch.add(rest_BE.mul_(signs_E)[:, :width], mean_D, out=x_BD[chunk])
        return x_BD


def hadamard(x_BE: Tensor) -> Tensor:
    """The orthogonal Walsh-Hadamard transform of rows of 2^k numbers, which is its own inverse.

    Computed by sums and differences in a fixed order, unlike a matrix product. The working copy is
    transposed, so that each step works on long contiguous runs.
    """
    rows, width = x_BE.shape
    current = x_BE.t().contiguous()
    scratch = torch.empty_like(current)
    half = 1
    while half < width:
        a, b = current.view(-1, 2, half * rows).unbind(dim=1)
        sums, differences = scratch.view(-1, 2, half * rows).unbind(dim=1)
        torch.add(a, b, out=sums)
        torch.sub(a, b, out=differences)
        current, scratch = scratch, current
        half *= 2
    return current.mul_(width**-0.5).t().contiguous()


def _clamp(x_BD: Tensor, headroom: float) -> Tensor:
    """Clamp to the float32 range divided by `headroom`, so that no sum of numbers overflows."""
    max_ = _limit(headroom)
    return x_BD.clamp(-max_, max_)


def _limit(headroom: float) -> float:
    return torch.finfo(torch.float32).max / headroom


def _kernels(device: torch.device, width: int) -> ModuleType | None:
    """The GPU kernels, if they can be used for rows of this width."""
    kernels = _gpu_quantizers() if device.type == "cuda" else None
    return kernels if kernels is not None and kernels.fits(width) else None


@cache
def _gpu_quantizers() -> ModuleType | None:
    try:
        from celu.codecs import gpu_quantizers
    except ImportError:  # torch without Triton
        return None
    return gpu_quantizers


def _seed_of(generator: torch.Generator | None) -> int | None:
    return None if generator is None else generator.initial_seed()


def _round_down(x_B: Tensor, dtype: torch.dtype) -> Tensor:
    """Round down to values of float32 or bfloat16; the result stays float32."""
    if dtype == torch.float32:
        return x_B
    bits = x_B.view(torch.int32)
    return torch.where(bits < 0, bits + 0xFFFF, bits).bitwise_and_(-0x10000).view(torch.float32)


def _round_up(x_B: Tensor, dtype: torch.dtype) -> Tensor:
    """Round non-negative numbers up to values of float32 or bfloat16; the result stays float32."""
    if dtype == torch.float32:
        return x_B
    return (x_B.view(torch.int32) + 0xFFFF).bitwise_and_(-0x10000).view(torch.float32)


def _chunks(x_BD: Tensor) -> Iterator[slice]:
    rows, width = x_BD.shape
    size = max(1, _CHUNK // width) if x_BD.device.type == "cpu" else rows
    return (slice(start, start + size) for start in range(0, rows, size))


def _rounding_noise(
    shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """Uniform noise in [-1/2, 1/2), times 65536: int16, which is quick to generate.

    Zeros without a generator.
    """
    if generator is None:
        return torch.zeros(shape, dtype=torch.int16, device=device)
    count = math.prod(shape)
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=generator.device)
    halves = words.random_(-(2**63), None, generator=generator).view(torch.int16)[:count]
    return halves.reshape(shape)


def _rotated_width(width: int) -> int:
    return 1 << (width - 1).bit_length()


@cache
def _signs(width: int, device: torch.device) -> Tensor:
    """+1 and -1, equal at all parties and in all releases: PCG64's raw stream is fixed."""
    bits = np.random.PCG64(np.random.SeedSequence(width)).random_raw(width) & np.uint64(1)
    return torch.from_numpy(1.0 - 2.0 * bits.astype(np.float32)).to(device)
