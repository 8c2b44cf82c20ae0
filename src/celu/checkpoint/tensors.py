"""Tensors as a safetensors file: in parts, so that a large model is neither copied nor held twice.

The format: eight bytes that count the header's, a JSON object that gives each tensor's type, shape
and place, then the tensors' own bytes. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from celu.checkpoint.disk import Part
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


def parts_of(tensors: Mapping[str, Tensor]) -> Iterator[Part]:
    """A file's parts, in order; raises CheckpointError for a type that the format lacks."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise CheckpointError(
                f"{name}: expected a tensor of {', '.join(sorted(_TYPES.values()))}, "
                f"got {tensor.dtype}, which a checkpoint cannot hold"
            )
        place = [end, end + tensor.nbytes]
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": place,
        }
        end = place[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            yield memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def tensors_of(data: bytes) -> dict[str, Tensor]:
    """The tensors of a file; raises ValueError where it is none."""
    try:
        loaded = safetensors.torch.load(data)
    except SafetensorError as error:
        raise ValueError(f"expected safetensors, got: {error}") from error
    # Tensors of torch's own rather than views of the file's bytes: aligned as any other, so that
    # kernels take the same path and give the same bits.
    return {name: tensor.clone() for name, tensor in loaded.items()}
