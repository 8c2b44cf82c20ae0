"""Numbers for reports, copied from a device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Readback:
    """The values of some tensors, once the device has computed them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._sizes = [tensor.numel() for tensor in tensors]
        self._copied: torch.cuda.Event | None = None
        if not tensors:
            self._values = torch.empty(0)
            return
        values = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])
        if values.is_cuda:
            self._values = torch.empty(values.shape, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
        else:
            self._values = values

    @property
    def is_ready(self) -> bool:
        """Whether the values are here."""
        return self._copied is None or self._copied.query()

    def wait(self) -> None:
        """Wait for the values, and so for all that the device was asked for before."""
        if self._copied is not None and not self.is_ready:
            self._copied.synchronize()

    def values(self) -> list[list[float]]:
        """The values of each tensor; waits for them."""
        self.wait()
        return [part.tolist() for part in self._values.split(self._sizes)]
