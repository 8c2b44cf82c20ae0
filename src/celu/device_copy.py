"""Copies between main memory and a GPU, through page-locked memory.

They have a stream of their own, so that the GPU computes meanwhile.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """Something that a device will have done: a `torch.cuda.Event`."""

    def synchronize(self) -> None:
        """Wait for it."""
        ...


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; what computes there waits for the copy, the caller does not."""
    if tensor.device.type != "cpu" or device.type != "cuda":
        return tensor.to(device)
    stream, current = _stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        copy = tensor.pin_memory().to(device, non_blocking=True)
    current.wait_stream(stream)
    copy.record_stream(current)  # its memory is not used again before this stream has used it
    return copy


def to_main_memory(tensor: Tensor) -> tuple[Tensor, Event]:
    """A copy of a tensor on a GPU, to be read only after the event, when it is complete."""
    stream = _stream(tensor.device)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copied = torch.cuda.Event()
    with torch.cuda.stream(stream):
        copy.copy_(tensor, non_blocking=True)
        copied.record()
    tensor.record_stream(stream)
    return copy, copied


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
