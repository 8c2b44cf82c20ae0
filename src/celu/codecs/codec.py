"""The codec interface: encode Z or dZ into fewer bytes, and decode them.

Decoding on a CPU gives the same bits on every machine: it uses only elementwise operations and sums
in a fixed order, never a matrix product. In training, rounding is stochastic, so that errors
average out over rows and rounds; only the sender needs the random generator, which the caller
seeds. Without a generator, rounding is to nearest: the same rows always give the same bytes.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from celu.errors import ShapeError


class Codec(Protocol):
    """Encodes a float32 matrix into bytes and decodes it."""

    def max_bytes(self, rows: int, width: int) -> int:
        """The maximum size of an encoded matrix of this shape."""
        ...

    def encode(self, x_BD: Tensor, generator: torch.Generator | None) -> Tensor:
        """Encode a finite matrix: uint8 [bytes], on the matrix's device.

        With a generator, which is on the same device, rounding is stochastic.
        """
        ...

    def decode(self, payload: Tensor, rows: int, width: int) -> Tensor:
        """Decode a matrix; raises ProtocolError or ShapeError if the size does not fit.

        The values are not checked: a peer's bytes may decode to NaN or Inf.
        """
        ...

    def bound(self, payload: Tensor, rows: int, width: int) -> float:
        """No number that `decode` computes, on its way too, is larger, as far as is quickly known.

        NaN or Inf if that is not known. The payload is in main memory; raises like `decode`.
        """
        ...


def check_size(payload: Tensor, expected: int) -> None:
    """Raise ShapeError unless a payload has the expected size."""
    if payload.numel() != expected:
        raise ShapeError(f"expected {expected} bytes of an encoded tensor, got {payload.numel()}")


def to_bytes(x: Tensor) -> Tensor:
    """A tensor's memory as uint8."""
    return x.contiguous().reshape(-1).view(torch.uint8)


def from_bytes(payload: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bytes viewed as another dtype; copied if they are not aligned."""
    if payload.storage_offset() % dtype.itemsize:
        payload = payload.clone()
    return payload.view(dtype)
