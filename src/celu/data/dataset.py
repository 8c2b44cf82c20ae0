"""A party's rows as tensors: one a named input, the labels where there are any, and the rows' tags.

The tensors may lie in memory, on an accelerator, or be mapped from files larger than memory
(`columns`). It neither reads files nor decides an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from celu.data.tags import Tags, commitment, digest_rows
from celu.errors import DataError


@dataclass(frozen=True)
class Batch:
    """Some rows: inputs by name, each [B, columns] (ids int64); labels [B] where there are any.

    `tags` say which rows they are, to the party alone; a digest of them travels.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None
    tags: Tags

    @staticmethod
    def join(parts: Sequence[Batch]) -> Batch:
        """Several parts as one batch."""
        labels = [part.labels for part in parts if part.labels is not None]
        return Batch(
            {n: torch.cat([part.inputs[n] for part in parts]) for n in parts[0].inputs},
            torch.cat(labels) if labels else None,
            np.concatenate([part.tags for part in parts]),
        )

    def to(self, device: torch.device) -> Batch:
        """The same rows on a device; from main memory by way of page-locked memory."""

        def move(tensor: Tensor) -> Tensor:
            if tensor.device.type == device.type:
                return tensor
            return tensor.pin_memory().to(device, non_blocking=True)

        labels = None if self.labels is None else move(self.labels)
        return Batch({n: move(t) for n, t in self.inputs.items()}, labels, self.tags)

    @cached_property
    def row_digest(self) -> bytes:
        """What travels with the Z and dZ of these rows, so that both sides know they mean them."""
        return digest_rows(self.tags)


@dataclass(frozen=True)
class Dataset:
    """Rows as tensors. `sizes` gives, for an input of ids, the number of codes of each column.

    Without `tags` a row is known by its number: the order is checked, not who the rows are.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None = None
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tags: Tags | None = None

    def __post_init__(self) -> None:
        counts = {name: len(t) for name, t in self.inputs.items()}
        if self.labels is not None:
            counts["labels"] = len(self.labels)
        if self.tags is not None:
            counts["tags"] = len(self.tags)
        if len(set(counts.values())) != 1:
            raise DataError(f"a table needs one number of rows for all its columns, got {counts}")

    @property
    def num_rows(self) -> int:
        """How many rows."""
        return len(self.labels if self.labels is not None else next(iter(self.inputs.values())))

    @property
    def num_bytes(self) -> int:
        """What the columns take in memory."""
        labels = 0 if self.labels is None else self.labels.nbytes
        return labels + sum(tensor.nbytes for tensor in self.inputs.values())

    @property
    def is_on_accelerator(self) -> bool:
        """Whether the columns lie elsewhere than in main memory."""
        return any(tensor.device.type != "cpu" for tensor in self.inputs.values())

    def take(self, rows: Tensor | slice) -> Batch:
        """The rows of these numbers, in this order."""
        there = self._sent(rows)
        labels = None if self.labels is None else _rows_of(self.labels, there)
        inputs = {name: _rows_of(tensor, there) for name, tensor in self.inputs.items()}
        inputs |= {name: inputs[name].long() for name in self.sizes}
        return Batch(inputs, labels, self._tags(rows))

    def gather_blocks(
        self, blocks: Sequence[tuple[int, int]], order: npt.NDArray[np.int64]
    ) -> Dataset:
        """A copy of some ranges of rows, laid end to end and then put into `order`."""

        def copy(tensor: Tensor) -> Tensor:
            laid = np.concatenate([tensor[start:stop].numpy() for start, stop in blocks])
            return torch.from_numpy(laid.take(order, axis=0))

        tags = np.concatenate([self._tags(slice(start, stop)) for start, stop in blocks])
        return Dataset(
            {name: copy(tensor) for name, tensor in self.inputs.items()},
            None if self.labels is None else copy(self.labels),
            self.sizes,
            tags.take(order, axis=0),
        )

    @cached_property
    def commitment(self) -> str:
        """Names these rows in this order; of many rows it takes a while, so it is kept."""
        return "by number" if self.tags is None else commitment(self.tags)

    def to(self, device: torch.device) -> Dataset:
        """The same table on a device; tags stay in main memory."""
        labels = None if self.labels is None else self.labels.to(device)
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return Dataset(inputs, labels, self.sizes, self.tags)

    def _sent(self, rows: Tensor | slice) -> Tensor | slice:
        """Row numbers to where the columns lie."""
        if isinstance(rows, slice) or not self.is_on_accelerator:
            return rows
        # By way of page-locked memory: else all that the accelerator was given is waited for.
        return rows.pin_memory().to(next(iter(self.inputs.values())).device, non_blocking=True)

    def _tags(self, rows: Tensor | slice) -> Tags:
        if self.tags is not None:
            return self.tags[rows if isinstance(rows, slice) else rows.cpu().numpy()]
        if isinstance(rows, slice):
            numbers = np.arange(*rows.indices(self.num_rows))
        else:
            numbers = rows.cpu().numpy()
        return numbers.astype("<i8").view(np.uint8).reshape(-1, 8)


def _rows_of(tensor: Tensor, rows: Tensor | slice) -> Tensor:
    if isinstance(rows, slice) or tensor.device.type != "cpu":
        return tensor[rows]
    # NumPy's, which takes one thread and no lock: torch would wake a pool of threads for it.
    return torch.from_numpy(tensor.numpy().take(rows.numpy(), axis=0))
