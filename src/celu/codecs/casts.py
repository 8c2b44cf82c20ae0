"""Casts: float32 unchanged, bfloat16, or float16 with a scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from celu.codecs.codec import check_size, from_bytes, to_bytes


class Cast:
    """Rounds to the nearest value of another dtype, and clamps to its finite range."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def max_bytes(self, rows: int, width: int) -> int:
        """See `Codec`."""
        return rows * width * self._dtype.itemsize

    def encode(self, x_BD: Tensor, generator: torch.Generator | None) -> Tensor:
        """See `Codec`."""
        del generator
        if self._dtype != torch.float32:
            max_ = torch.finfo(self._dtype).max
            x_BD = x_BD.clamp(-max_, max_)
        return to_bytes(x_BD.to(self._dtype))

    def decode(self, payload: Tensor, rows: int, width: int) -> Tensor:
        """See `Codec`."""
        check_size(payload, self.max_bytes(rows, width))
        return from_bytes(payload, self._dtype).reshape(rows, width).float()

    def bound(self, payload: Tensor, rows: int, width: int) -> float:
        """See `Codec`: finding it would take as long as decoding."""
        del payload, rows, width
        return math.inf


class ScaledFloat16:
    """float16 numbers times a power of two, which is sent first as float32 (four bytes).

    Derivatives of a mean loss are around 1e-8, where float16 has no numbers left. The scale moves
    the largest number of the matrix to just below the top of float16's range.
    """

    _scale_bytes = 4
    _max = (2 - 2**-10) * 2.0**127  # the largest float32 with the 11 bits of a float16

    def max_bytes(self, rows: int, width: int) -> int:
        """See `Codec`."""
        return self._scale_bytes + rows * width * torch.float16.itemsize

    def encode(self, x_BD: Tensor, generator: torch.Generator | None) -> Tensor:
        """See `Codec`."""
        del generator
        x_BD = x_BD.clamp(-self._max, self._max)
        # The largest number is below 2**exponent, and becomes one below 2**15.
        exponent = torch.frexp(x_BD.abs().max()).exponent
        power = (15 - exponent).clamp(-126, 126)  # both 2**power and 2**-power are normal numbers
        scaled_BD = (x_BD * _power_of_two(power)).to(torch.float16)
        return torch.cat([to_bytes(_power_of_two(-power)), to_bytes(scaled_BD)])

    def decode(self, payload: Tensor, rows: int, width: int) -> Tensor:
        """See `Codec`. Also reads payloads without a scale, from checkpoints before it."""
        if payload.numel() == rows * width * torch.float16.itemsize:
            return from_bytes(payload, torch.float16).reshape(rows, width).float()
        check_size(payload, self.max_bytes(rows, width))
        scale = from_bytes(payload[: self._scale_bytes])
        numbers = from_bytes(payload[self._scale_bytes :], torch.float16)
        return numbers.reshape(rows, width).float().mul_(scale)

    def bound(self, payload: Tensor, rows: int, width: int) -> float:
        """See `Cast.bound`."""
        del payload, rows, width
        return math.inf


def _power_of_two(exponent: Tensor) -> Tensor:
    """2**exponent for a normal float32, from its bits: `pow` need not be exact on every device."""
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)
