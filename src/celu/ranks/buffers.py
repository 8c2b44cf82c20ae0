"""Refuses models whose forward pass changes buffers, such as running means of BatchNorm.

Each rank sees other rows, so the ranks of a party would hold different models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from celu.errors import ModelError
from celu.ranks.slices import Slices


class BufferCheck:
    """Watches the buffers of a party's modules, where it computes batches in several slices."""

    def __init__(self, party: str, modules: Mapping[str, nn.Module], slices: Slices) -> None:
        self._party = party
        self._modules = modules if slices.size > 1 else {}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise ModelError if the block changes a buffer."""
        before = self._versions()
        yield
        changed = [name for name, version in self._versions().items() if before[name] != version]
        if changed:
            raise ModelError(
                f"{self._party}: the forward pass changes the buffer {changed[0]}, which would "
                "differ between ranks or slices; use a layer without running statistics, such as "
                "LayerNorm instead of BatchNorm, or run one process with slices = 1"
            )

    def _versions(self) -> dict[str, tuple[int, int]]:
        return {
            f"{which}.{name}": (id(buffer), buffer._version)
            for which, module in self._modules.items()
            for name, buffer in module.named_buffers()
        }
