"""Converts torch tensors, NumPy arrays and pandas columns to the tensors of a dataset.

It converts types, and text labels to codes: it neither scales nor encodes other values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from celu.errors import DataError

Array = Tensor | npt.NDArray[Any] | Any  # or a pandas object, which need not be installed

_TARGETS = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float32,
    torch.bool: torch.float32,
    torch.uint8: torch.int64,
    torch.int8: torch.int64,
    torch.int16: torch.int64,
    torch.int32: torch.int64,
    torch.int64: torch.int64,
}
_EXPECTED = "a torch tensor or a NumPy array of floats (up to 64 bits), integers or booleans"


def to_tensor(name: str, values: Array, *, are_codes: bool = False) -> Tensor:
    """Return float32 or int64, without a copy if the type is right already.

    With `are_codes` the integer type stays: widening memory-mapped int32 codes would load all of
    them, so a batch widens its own copy instead. Raises DataError naming the input for any other
    type.
    """
    values = _unpack(name, values)
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


def to_labels(values: Array) -> tuple[Tensor, tuple[str, ...] | None]:
    """Labels as a tensor; text as int64 codes of its sorted distinct values, which are returned.

    Raises DataError as `to_tensor` does, and for text with missing values.
    """
    values = _unpack("labels", values)
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "OSUT":
        return to_tensor("labels", values), None
    if values.ndim != 1:
        raise DataError(f"labels: expected one text per row, got shape {list(values.shape)}")
    if values.dtype.kind == "S":
        values = values.astype(str)
    texts = values.tolist()
    num_others = sum(not isinstance(text, str) for text in texts)
    if num_others:
        raise DataError(
            f"labels: expected text in every row, got a missing value or another type in "
            f"{num_others:,} of {len(texts):,} rows; replace them or drop those rows"
        )
    classes, codes = np.unique(np.array(texts, dtype=object), return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), tuple(map(str, classes))


def _unpack(name: str, values: Array) -> Array:
    """A pandas object as a NumPy array, and an array of objects that are numbers as one of numbers.

    Raises DataError for values that a mask hides: it would be lost.
    """
    if type(values).__module__.partition(".")[0] == "pandas":
        values = np.asarray(values)  # of objects for nullable integers, or categories
    if isinstance(values, np.ma.MaskedArray):
        num_masked = int(np.ma.getmaskarray(values).sum())
        if num_masked:
            raise DataError(
                f"{name}: expected values everywhere, got {num_masked:,} that are masked; replace "
                "them (numpy.ma.filled) or drop those rows"
            )
        values = np.asarray(values)
    if not isinstance(values, np.ndarray) or values.dtype.kind != "O" or not values.size:
        return values
    are_numbers = all(isinstance(v, int | float | np.number | np.bool_) for v in values.flat)
    return np.array(values.tolist()) if are_numbers else values


def _from_numpy(name: str, values: npt.NDArray[Any]) -> Tensor:
    if values.dtype.kind not in "fiub":
        raise DataError(f"{name}: expected {_EXPECTED}, got a NumPy array of {values.dtype}")
    if values.dtype in (np.uint16, np.uint32, np.uint64):  # torch has these for storage only
        if values.size and int(values.max()) > np.iinfo(np.int64).max:
            raise DataError(f"{name}: expected integers below 2**63, got larger ones")
        values = values.astype(np.int64)
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:  # torch has no such type
        values = values.astype(np.float64)
    native = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    # Torch has no read-only tensors and warns about memory that may not be written to.
    return torch.from_numpy(native if native.flags.writeable else native.copy())
