"""Converts torch tensors and NumPy arrays to the tensors of a dataset.

It converts types only: it neither scales nor encodes values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from celu.errors import DataError

Array = Tensor | npt.NDArray[Any]

_TARGETS = {
    torch.float32: torch.float32,
    torch.float64: torch.float32,
    torch.bool: torch.float32,
    torch.uint8: torch.int64,
    torch.int8: torch.int64,
    torch.int16: torch.int64,
    torch.int32: torch.int64,
    torch.int64: torch.int64,
}
_EXPECTED = "a torch tensor or a NumPy array of floats (32 or 64 bits), integers or booleans"


def to_tensor(name: str, values: Array, *, are_codes: bool = False) -> Tensor:
    """Return float32 or int64, without a copy if the type is right already.

    With `are_codes` the integer type stays: widening memory-mapped int32 codes would load all of
    them, so a batch widens its own copy instead. Raises DataError naming the input for any other
    type.
    """
    if isinstance(values, np.ndarray):
        tensor = _from_numpy(name, values)
    elif isinstance(values, Tensor):
        tensor = values.detach() if values.requires_grad else values
    else:
        raise DataError(f"{name}: expected {_EXPECTED}, got {type(values).__name__}")
    target = _TARGETS.get(tensor.dtype)
    if target is None:
        raise DataError(f"{name}: expected {_EXPECTED}, got {tensor.dtype}")
    if not values.ndim:  # not `tensor.ndim`: np.ascontiguousarray adds a dimension
        raise DataError(f"{name}: expected one or more values per row, got a single value")
    if are_codes:
        if target is not torch.int64:
            raise DataError(f"{name}: has sizes, so expected integer codes, got {tensor.dtype}")
        return tensor
    return tensor.to(target)


def _from_numpy(name: str, values: npt.NDArray[Any]) -> Tensor:
    if values.dtype.kind not in "fiub":
        raise DataError(f"{name}: expected {_EXPECTED}, got a NumPy array of {values.dtype}")
    if values.dtype in (np.uint16, np.uint32):  # torch supports these two for storage only
        values = values.astype(np.int64)
    native = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    # Torch has no read-only tensors and warns about memory that may not be written to.
    return torch.from_numpy(native if native.flags.writeable else native.copy())
