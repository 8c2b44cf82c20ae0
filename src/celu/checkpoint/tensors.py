"""Tensors to and from safetensors, written in parts so that a large model is not copied.

The format: the header's length in eight bytes, a JSON header with each tensor's type, shape and
offsets, then the tensors' bytes. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from celu.checkpoint.disk import BytesLike
from celu.errors import CheckpointError
from celu.model_identity import StreamedTensor, bytes_of

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_MAX_DIMS = 16
_MAX_ELEMENTS = 1 << 48  # also of a tensor with a dimension of 0, whose strides may overflow


def serialize_tensors(tensors: Mapping[str, Tensor | StreamedTensor]) -> Iterator[BytesLike]:
    """The parts of a file, in order; raises CheckpointError for an unsupported dtype."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise CheckpointError(
                f"{name}: a checkpoint cannot store {tensor.dtype}; "
                f"expected one of {', '.join(sorted(_TYPES.values()))}"
            )
        offsets = [end, end + tensor.nbytes]
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        end = offsets[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield from bytes_of(tensor)


def load_tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a file; raises ValueError if it is not safetensors as we write it."""
    _check_header(data)
    try:
        loaded = safetensors.torch.load(data)
    except SafetensorError as error:
        raise ValueError(f"expected safetensors, got: {error}") from error
    for name, tensor in loaded.items():
        if tensor.dtype == torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
            raise ValueError(f"{name[:200]!r}: expected booleans, got other bytes")
    # Copies instead of views of the file's bytes: they are aligned like any other tensor, so
    # kernels take the same path and return the same bits.
    return {name: tensor.clone() for name, tensor in loaded.items()}


def _check_header(data: bytes) -> None:
    """Raise ValueError for a header that is not one, or that no model of ours has.

    The library accepts repeated names, and types and shapes that torch refuses later.
    """
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= len(data) - 8:
        raise ValueError(
            f"expected safetensors, got {len(data)} bytes with a header of {length} bytes"
        )
    try:
        header = json.loads(data[8 : 8 + length], object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"expected safetensors, got a header that is not valid: {error}"
        ) from error
    if not isinstance(header, dict):
        raise ValueError("expected safetensors, got a header that is not a JSON object")
    for name, entry in header.items():
        if not isinstance(entry, dict) or not _is_supported(entry.get("dtype"), entry.get("shape")):
            raise ValueError(f"{name[:200]!r}: expected a tensor of a supported type and shape")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _is_supported(dtype: object, shape: object) -> bool:
    return (
        isinstance(dtype, str)
        and dtype in _TYPES.values()
        and isinstance(shape, list)
        and len(shape) <= _MAX_DIMS
        and all(type(size) is int and size >= 0 for size in shape)
        and math.prod(max(size, 1) for size in shape) <= _MAX_ELEMENTS
    )
