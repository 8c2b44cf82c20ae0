"""Casts: float32 unchanged, or a 16-bit float type."""

from __future__ import annotations

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

    def encode(self, x_BD: Tensor, generator: torch.Generator) -> Tensor:
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
