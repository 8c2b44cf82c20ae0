"""A party's rows as tensors: one for each named input, the labels if it has any, and row tags.

The tensors may be in main memory, on a GPU, or mapped from files larger than memory (`memory_map`).
It neither reads files nor decides an order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from celu.config.schema import ClassLabel
from celu.data.arrays import Array, to_labels, to_tensor
from celu.data.table import read_table
from celu.data.tags import Tags, commitment, digest_rows
from celu.device_copy import to_device
from celu.errors import DataError

_CHUNK = 1 << 20
MAX_EXAMPLES = 20_000  # rows, on which a bottom model may fit something


@dataclass(frozen=True)
class Batch:
    """Some rows: inputs by name, each [B, columns] (ids int64), and labels [B] if there are any.

    `tags` identify the rows and stay at the party; it sends only a digest of them. `weights` [B],
    if there are any, say how much each row counts.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None
    tags: Tags
    weights: Tensor | None = None
    whole: Tags | None = None  # the tags of all rows, if these are a part of a batch

    @staticmethod
    def join(parts: Sequence[Batch]) -> Batch:
        """Concatenate batches."""
        labels = [part.labels for part in parts if part.labels is not None]
        weights = [part.weights for part in parts if part.weights is not None]
        return Batch(
            {n: torch.cat([part.inputs[n] for part in parts]) for n in parts[0].inputs},
            torch.cat(labels) if labels else None,
            np.concatenate([part.tags for part in parts]),
            torch.cat(weights) if weights else None,
        )

    def to(self, device: torch.device) -> Batch:
        """The same rows on a device; copied from main memory through page-locked memory."""
        if all(tensor.device.type == device.type for tensor in self.tensors()):
            return self

        return self.with_tensors([to_device(tensor, device) for tensor in self.tensors()])

    def part(self, rows: slice) -> Batch:
        """A copy of some consecutive rows; its digest stays that of the whole batch."""
        return Batch(
            {name: tensor[rows].clone() for name, tensor in self.inputs.items()},
            None if self.labels is None else self.labels[rows].clone(),
            self.tags[rows],
            None if self.weights is None else self.weights[rows].clone(),
            self.tags if self.whole is None else self.whole,
        )

    def split(self, rows: int) -> list[Batch]:
        """Batches of this many consecutive rows, without copying them."""
        stops = range(rows, len(self.tags) + 1, rows)
        split = [tensor.split(rows) for tensor in self.tensors()]
        return [
            replace(self, tags=self.tags[stop - rows : stop]).with_tensors(parts)
            for stop, parts in zip(stops, zip(*split, strict=True), strict=True)
        ]

    def tensors(self) -> list[Tensor]:
        """The inputs, and the labels and weights if there are any."""
        others = [tensor for tensor in (self.labels, self.weights) if tensor is not None]
        return [*self.inputs.values(), *others]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Batch:
        """The same batch with others for its `tensors`, in their order."""
        remaining = iter(tensors)
        inputs = {name: next(remaining) for name in self.inputs}
        labels = None if self.labels is None else next(remaining)
        weights = None if self.weights is None else next(remaining)
        return replace(self, inputs=inputs, labels=labels, weights=weights)

    @cached_property
    def row_digest(self) -> bytes:
        """The digest sent with Z and dZ. Parties compare it to detect that their rows differ."""
        return digest_rows(self.tags if self.whole is None else self.whole)


@dataclass(frozen=True, init=False)
class Dataset:
    """Rows as tensors: float32 or int64, converted from torch tensors, NumPy arrays or pandas.

    `sizes` gives, for an input of ids, the number of codes of each column. Without `tags` a row is
    known by its number: the parties compare the order of the rows, not their identity. Text labels
    and categories become codes of `classes`, their sorted distinct values. Of labels that are codes
    or two numbers already, `classes` may be given; of two, the second is the positive one.
    `weights` say how much each of the guest's rows counts, in training and in metrics: 0 or more, 1
    by default. Raises DataError for other types, NaN, Inf and values that a mask hides.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None
    sizes: dict[str, tuple[int, ...]]
    tags: Tags | None
    classes: tuple[ClassLabel, ...] | None
    weights: Tensor | None

    def __init__(
        self,
        inputs: Mapping[str, Array],
        labels: Array | None = None,
        sizes: Mapping[str, tuple[int, ...]] | None = None,
        tags: Tags | None = None,
        classes: Sequence[ClassLabel] | None = None,
        *,
        weights: Array | None = None,
    ) -> None:
        self._set(inputs, labels, sizes, tags, classes, weights)
        for name, tensor in self.inputs.items():
            _check_finite(name, tensor)

    @classmethod
    def of_finite(
        cls,
        inputs: Mapping[str, Array],
        labels: Array | None,
        sizes: Mapping[str, tuple[int, ...]],
        tags: Tags | None,
        classes: Sequence[ClassLabel] | None,
        weights: Array | None,
    ) -> Dataset:
        """A dataset whose inputs are known to be finite: they may be mapped, and are not read."""
        dataset = cls.__new__(cls)
        dataset._set(inputs, labels, sizes, tags, classes, weights)
        return dataset

    def _set(
        self,
        inputs: Mapping[str, Array],
        labels: Array | None,
        sizes: Mapping[str, tuple[int, ...]] | None,
        tags: Tags | None,
        classes: Sequence[ClassLabel] | None,
        weights: Array | None,
    ) -> None:
        if not isinstance(inputs, Mapping):
            raise DataError(f"inputs: expected arrays by name, got {type(inputs).__name__}")
        sizes = dict(sizes or {})
        tensors = {
            name: to_tensor(f"input {name!r}", values, are_codes=name in sizes)
            for name, values in inputs.items()
        }
        codes, found = (None, None) if labels is None else to_labels(labels)
        for name, value in {
            "inputs": tensors,
            "labels": codes,
            "sizes": sizes,
            "tags": tags,
            "classes": found if classes is None else tuple(classes),
            "weights": None if weights is None else to_tensor("weights", weights).float(),
        }.items():
            object.__setattr__(self, name, value)
        self._check()

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        label: str | None = None,
        id: str | None = None,
        weight: str | None = None,
        inputs: Mapping[str, Sequence[str]] | None = None,
        seed: int = 1,
    ) -> Dataset:
        """A dataset from a pandas DataFrame or a pyarrow Table, with the inputs that a store has.

        Text and categorical columns become "ids" [N, columns], coded by their sorted distinct
        values. Numbers, integers included, and booleans become "numbers" [N, columns]. `inputs`
        selects columns instead: `{"numbers": ["a", "b"], "ids": ["c"]}`; integers under "ids" are
        used as codes. To give training and test rows the same codes, make a column categorical
        before you split the table.

        `id` names the column of row ids: the parties then check that row i is the same row
        everywhere. `seed` must be equal at all parties, and to `split.seed` of a party's store.
        `weight` names the column of row weights.

        Raises DataError naming a column that is missing or has nulls, repeated ids or another type.
        """
        content = read_table(table, label=label, row_id=id, weight=weight, inputs=inputs, seed=seed)
        return cls(**content._asdict())

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name} {list(t.shape)}" for name, t in self.inputs.items())
        labels = "no labels" if self.labels is None else f"labels {list(self.labels.shape)}"
        return f"Dataset({inputs or 'no inputs'}; {labels})"

    def _check(self) -> None:
        counts = {f"input {name!r}": len(tensor) for name, tensor in self.inputs.items()}
        if self.labels is not None:
            counts["labels"] = len(self.labels)
        if self.weights is not None:
            _check_weights(self.weights)
            counts["weights"] = len(self.weights)
        if not counts.keys() - {"weights"}:
            raise DataError("a dataset needs inputs or labels, got neither")
        if self.tags is not None:
            counts["tags"] = len(self.tags)
        if len(set(counts.values())) > 1:
            got = ", ".join(f"{name}: {count:,}" for name, count in counts.items())
            raise DataError(f"a dataset needs the same number of rows everywhere, got {got}")

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.labels if self.labels is not None else next(iter(self.inputs.values())))

    @property
    def num_bytes(self) -> int:
        """The size of the inputs, labels and weights."""
        others = [tensor for tensor in (self.labels, self.weights) if tensor is not None]
        return sum(tensor.nbytes for tensor in (*self.inputs.values(), *others))

    @cached_property
    def is_on_accelerator(self) -> bool:
        """Whether the inputs are on a device other than the CPU."""
        return any(tensor.device.type != "cpu" for tensor in self.inputs.values())

    def take(self, rows: Tensor | slice) -> Batch:
        """The rows with these numbers, in this order."""
        moved = self._on_device(rows)
        labels = None if self.labels is None else _select(self.labels, moved)
        inputs = {name: _select(tensor, moved) for name, tensor in self.inputs.items()}
        inputs |= {name: inputs[name].long() for name in self.sizes}
        weights = None if self.weights is None else _select(self.weights, moved)
        return Batch(inputs, labels, self._tags(rows), weights)

    def take_tags(self, start: int, stop: int) -> Tags:
        """The tags of some consecutive rows; those of rows without tags are their numbers."""
        return self._tags(slice(start, stop))

    def tags_of(self, rows: Tensor) -> Tags:
        """The tags of the rows with these numbers."""
        return self._tags(rows)

    def examples(self) -> dict[str, Tensor]:
        """At most MAX_EXAMPLES rows of each input, evenly spaced, in main memory."""
        count = min(self.num_rows, MAX_EXAMPLES)
        rows = torch.arange(count) * self.num_rows // count
        return {name: tensor.cpu() for name, tensor in self.take(rows).inputs.items()}

    def gather_blocks(
        self, blocks: Sequence[tuple[int, int]], order: npt.NDArray[np.int64]
    ) -> Dataset:
        """A copy of some ranges of rows, concatenated and then permuted by `order`."""

        def copy(tensor: Tensor) -> Tensor:
            joined = np.concatenate([tensor[start:stop].numpy() for start, stop in blocks])
            return torch.from_numpy(joined.take(order, axis=0))

        tags = np.concatenate([self._tags(slice(start, stop)) for start, stop in blocks])
        return Dataset.of_finite(
            {name: copy(tensor) for name, tensor in self.inputs.items()},
            None if self.labels is None else copy(self.labels),
            self.sizes,
            tags.take(order, axis=0),
            self.classes,
            None if self.weights is None else copy(self.weights),
        )

    @cached_property
    def commitment(self) -> str:
        """Identifies these rows in this order; cached, since hashing many rows takes a while."""
        return "by number" if self.tags is None else commitment(self.tags)

    def to(self, device: torch.device) -> Dataset:
        """The same rows on a device; tags stay in main memory."""
        labels = None if self.labels is None else self.labels.to(device)
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        weights = None if self.weights is None else self.weights.to(device)
        return Dataset.of_finite(inputs, labels, self.sizes, self.tags, self.classes, weights)

    def with_labels(self, labels: Tensor, classes: Sequence[ClassLabel] | None) -> Dataset:
        """The same rows with other labels, which are codes of `classes` if there are any."""
        inputs, weights = self.inputs, self.weights
        return Dataset.of_finite(inputs, labels, self.sizes, self.tags, classes, weights)

    def _on_device(self, rows: Tensor | slice) -> Tensor | slice:
        """Row numbers on the device of the inputs."""
        if isinstance(rows, slice) or not self.is_on_accelerator:
            return rows
        # From page-locked memory: a copy from pageable memory waits for all queued kernels.
        return to_device(rows, next(iter(self.inputs.values())).device)

    def _tags(self, rows: Tensor | slice) -> Tags:
        if self.tags is not None:
            return self.tags[rows if isinstance(rows, slice) else rows.cpu().numpy()]
        if isinstance(rows, slice):
            numbers = np.arange(*rows.indices(self.num_rows), dtype="<i8")
        else:
            numbers = rows.cpu().numpy().astype("<i8", copy=False)
        return numbers.view(np.uint8).reshape(-1, 8)


def _select(tensor: Tensor, rows: Tensor | slice) -> Tensor:
    if isinstance(rows, slice) or tensor.device.type != "cpu":
        return tensor[rows]
    # NumPy gathers in this thread; torch would wake its thread pool.
    return torch.from_numpy(tensor.numpy().take(rows.numpy(), axis=0))


def _check_finite(name: str, tensor: Tensor) -> None:
    """Raise DataError for an input with NaN or Inf, in chunks: a mask of all of it may not fit."""
    if not tensor.is_floating_point():
        return
    bad = [
        ~chunk.isfinite().reshape(len(chunk), -1).all(1)
        for chunk in tensor.split(_CHUNK)
        if len(chunk)
    ]
    num_bad = int(torch.stack([rows.sum() for rows in bad]).sum()) if bad else 0
    if num_bad:
        raise DataError(
            f"input {name!r}: expected finite numbers, got NaN or Inf in {num_bad:,} of "
            f"{len(tensor):,} rows; replace them or drop those rows"
        )


def _check_weights(weights: Tensor) -> None:
    if weights.dim() != 1:
        raise DataError(f"weights: expected one value per row, got {list(weights.shape)}")
    num_bad = int((~(weights.isfinite() & (weights >= 0))).sum())
    if num_bad:
        raise DataError(f"weights: expected 0 or more, and finite, got others in {num_bad:,} rows")
