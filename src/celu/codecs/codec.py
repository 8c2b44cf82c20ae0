"""What a codec is: Z or dZ as fewer bytes, and back.

Both parties go on with what was decoded, the sender included, so that they agree. Decoding is
therefore exact arithmetic, the same on every machine: elementwise operations, and sums in a fixed
order, never a matrix product. Rounding is at random, so that its errors average out over rows and
rounds; the noise comes from a generator that the caller seeds, and only the sender needs it.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from celu.errors import ShapeError


class Codec(Protocol):
    """A matrix of float32 in, bytes out, and back."""

    def max_bytes(self, rows: int, width: int) -> int:
        """The most bytes that a matrix of this shape becomes."""
        ...

    def encode(self, x_BD: Tensor, noise: torch.Generator) -> Tensor:
        """The bytes of a finite matrix: uint8 [bytes], on the matrix's device."""
        ...

    def decode(self, payload: Tensor, rows: int, width: int) -> Tensor:
        """The matrix; raises ProtocolError or ShapeError for bytes of no such shape.

        The numbers in it may be anything, NaN and Inf too: the caller looks.
        """
        ...


def check_size(payload: Tensor, expected: int) -> None:
    """Raise ShapeError unless a payload has the size that its shape asks for."""
    if payload.numel() != expected:
        raise ShapeError(f"expected {expected} bytes of a tensor, got {payload.numel()}")


def to_bytes(x: Tensor) -> Tensor:
    """A tensor's memory, as uint8."""
    return x.contiguous().reshape(-1).view(torch.uint8)


def from_bytes(payload: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bytes as numbers; copied where they do not lie as numbers must."""
    if payload.storage_offset() % dtype.itemsize:
        payload = payload.clone()
    return payload.view(dtype)
