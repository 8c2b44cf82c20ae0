"""Tensors to and from safetensors, written in parts so that a large model is not copied.

The format: the header's length in eight bytes, a JSON header with each tensor's type, shape and
offsets, then the tensors' bytes. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from celu.checkpoint.disk import BytesLike
from celu.errors import CheckpointError

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


def serialize_tensors(tensors: Mapping[str, Tensor]) -> Iterator[BytesLike]:
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
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            yield memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def load_tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a file; raises ValueError if it is not safetensors."""
    try:
        loaded = safetensors.torch.load(data)
    except SafetensorError as error:
        raise ValueError(f"expected safetensors, got: {error}") from error
    # Copies instead of views of the file's bytes: they are aligned like any other tensor, so
    # kernels take the same path and return the same bits.
    return {name: tensor.clone() for name, tensor in loaded.items()}
