"""The tensors of a loaded checkpoint, checked against the live model, name by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from celu.errors import CheckpointError

Shape = tuple[int, ...]


class CheckpointTensors:
    """The tensors of a checkpoint, removed one by one as they are used.

    Raises CheckpointError for a missing, misshapen or unused tensor.
    """

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self._tensors = dict(tensors)
        self._device = device

    def pop(self, name: str, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        """Remove and return a tensor, which must have this shape and dtype."""
        tensor = self._tensors.pop(name, None)
        if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != dtype:
            got = "none" if tensor is None else f"{tensor.dtype} of {list(tensor.shape)}"
            raise CheckpointError(
                f"{name}: the checkpoint does not fit the model: expected {dtype} of "
                f"{list(shape)}, got {got}. Restore the model and settings that the run started "
                "with"
            )
        return tensor.to(self._device)

    def pop_optional(self, name: str) -> Tensor | None:
        """Remove and return a tensor of any shape, or None if there is none."""
        tensor = self._tensors.pop(name, None)
        return None if tensor is None else tensor.to(self._device)

    def pop_prefix(self, prefix: str) -> dict[str, Tensor]:
        """Remove and return all tensors with this prefix, by the rest of their names."""
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {n.removeprefix(prefix): self._tensors.pop(n).to(self._device) for n in names}

    def pop_weights(
        self, prefix: str, modules: Mapping[str, nn.Module]
    ) -> dict[str, dict[str, Tensor]]:
        """Remove and return the weights of these modules, whose names start with `prefix`."""
        return {
            which: {
                name: self.pop(f"{prefix}{which}.{name}", tuple(live.shape), live.dtype)
                for name, live in module.state_dict().items()
            }
            for which, module in modules.items()
        }

    def check_empty(self) -> None:
        """Raise CheckpointError if tensors are left that the model does not have."""
        if self._tensors:
            raise CheckpointError(
                f"{', '.join(sorted(self._tensors)[:5])}: the checkpoint has tensors that the "
                "model does not have. Restore the model and settings that the run started with"
            )
