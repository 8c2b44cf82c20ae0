"""Rows of a store, read once and in order from its Parquet files: memory does not grow with it.

For prediction, which reads each row once. Training needs random access: see `memory_map`. Every
value is checked on the way, as the gate checks a store before training.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from celu.config.schema import ID, TAG, Part
from celu.data.dataset import Batch
from celu.data.inputs import InputLayout, layouts
from celu.data.store import Store, tags_of, to_numpy
from celu.data.tags import TAG_BYTES, Commitment, Tags
from celu.errors import DataError

Inputs = Mapping[str, Sequence[str]]  # the columns of each input of a bottom model
# The aligned row numbers of a part, ascending, from one position to before another.
RowNumbers = Callable[[Part, int, int], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Block:
    """Consecutive rows: inputs by name, as in `inputs`, tags, and ids if they were read."""

    inputs: dict[str, npt.NDArray[Any]]
    tags: Tags
    ids: Any = None  # an Arrow array of strings

    def __len__(self) -> int:
        return len(self.tags)

    def cut(self, start: int, stop: int) -> Block:
        """Some of the rows; nothing is copied."""
        ids = None if self.ids is None else self.ids[start:stop]
        inputs = {name: values[start:stop] for name, values in self.inputs.items()}
        return Block(inputs, self.tags[start:stop], ids)

    @staticmethod
    def join(first: Block, second: Block) -> Block:
        """The rows of both."""
        import pyarrow as pa

        return Block(
            {n: np.concatenate((v, second.inputs[n])) for n, v in first.inputs.items()},
            np.concatenate((first.tags, second.tags)),
            None if first.ids is None else pa.concat_arrays([first.ids, second.ids]),
        )

    def batch(self) -> Batch:
        """The rows as tensors."""
        tensors = {name: torch.from_numpy(values) for name, values in self.inputs.items()}
        codes = {n: t.long() for n, t in tensors.items() if t.dtype == torch.int32}
        return Batch(tensors | codes, None, self.tags)


class RowStream:
    """The rows of a store with the columns of some inputs: those of an alignment, or the others.

    `counts` has the number of aligned rows of each part and `numbers` returns them; without
    `numbers`, all rows are aligned. With `ids`, blocks have the ids of their rows.
    """

    def __init__(
        self,
        store: Store,
        inputs: Inputs,
        counts: Mapping[Part, int],
        numbers: RowNumbers | None,
        *,
        ids: bool,
    ) -> None:
        self._store = store
        self._layouts = layouts(store.schema, inputs, str(store.path))
        self._counts = counts
        self._numbers = numbers
        features = [column for layout in self._layouts.values() for column in layout.columns]
        self._columns = [*([ID] if ids else []), TAG, *dict.fromkeys(features)]

    def blocks(self, part: Part, *, aligned: bool, start: int = 0) -> Generator[Block, None, None]:
        """The aligned rows of a part, or the others, from the `start`-th of them on.

        Raises DataError for nulls, NaN, Inf and codes that the schema does not have.
        """
        for batch in self._selected(part, self._columns, aligned, start):
            ids = None
            if ID in self._columns:
                ids = batch.column(ID)
                self._refuse(part, ID, "an id in every row", ids.null_count)
            inputs = {n: self._matrix(part, layout, batch) for n, layout in self._layouts.items()}
            yield Block(inputs, tags_of(batch), ids)

    def commitments(self) -> dict[Part, str]:
        """The commitments to the aligned rows of each part; reads all tags."""
        found: dict[Part, str] = {}
        for part in self._store.parts:
            made = Commitment()
            for batch in self._selected(part, [TAG], True, 0):
                made.add(tags_of(batch))
            found[part] = made.hexdigest()
        return found

    def _selected(self, part: Part, columns: list[str], aligned: bool, start: int) -> Iterator[Any]:
        """Record batches of the selected rows."""
        if self._numbers is None:
            if aligned:
                yield from self._store.batches(part, columns, start=start)
            return
        row, position = self._find(part, aligned, start)
        for batch in self._store.batches(part, columns, start=row):
            stop = row + batch.num_rows
            numbers = self._numbers(part, position, position + batch.num_rows)
            numbers = numbers[: np.searchsorted(numbers, stop)]
            is_selected = np.full(batch.num_rows, not aligned)
            is_selected[numbers - row] = aligned
            if is_selected.all():
                yield batch
            elif is_selected.any():
                yield _filter(batch, is_selected)
            row, position = stop, position + len(numbers)

    def _find(self, part: Part, aligned: bool, start: int) -> tuple[int, int]:
        """The store's row where the selected row `start` is, and the aligned rows before it."""
        assert self._numbers is not None
        read, count = self._numbers, self._counts[part]
        if not aligned:
            # The number of other rows before aligned row i is its row number less i.
            position = bisect_right(
                range(count), start, key=lambda i: int(read(part, i, i + 1)[0]) - i
            )
            return start + position, position
        if start >= count:
            return self._store.schema.rows[part], count
        return int(read(part, start, start + 1)[0]), start

    def _matrix(self, part: Part, layout: InputLayout, batch: Any) -> npt.NDArray[Any]:
        for column in layout.columns:
            self._refuse(part, column, "no nulls", batch.column(column).null_count)
        values = layout.stack([to_numpy(batch.column(column)) for column in layout.columns])
        if not layout.sizes:
            what, is_valid = "finite numbers", np.isfinite(values)
        else:
            sizes = np.array(layout.sizes).reshape(-1, *[1] * (values.ndim - 2))
            what, is_valid = "codes below the declared size", (values >= 0) & (values < sizes)
        if not is_valid.all():
            bad_rows = (~is_valid).reshape(*values.shape[:2], -1).any(axis=2).sum(axis=0)
            for column, invalid in zip(layout.columns, bad_rows, strict=True):
                self._refuse(part, column, what, int(invalid))
        return values

    def _refuse(self, part: Part, column: str, expected: str, count: int) -> None:
        if count:
            raise DataError(
                f"{self._store.path}: {part}: column {column!r}: expected {expected}, got others "
                f"in {count:,} rows; prepare the store again"
            )


def _filter(batch: Any, is_selected: npt.NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    return batch.filter(pa.array(is_selected))


def check_unique(store: Store) -> None:
    """Raise DataError if two rows have the same id; reads all tags.

    Rows in the order of their tags, as `celu prepare` writes them, are compared with the row
    before. Other stores need memory for all tags.
    """
    for part in store.parts:
        last = np.zeros((0, TAG_BYTES), np.uint8)
        for batch in store.batches(part, [TAG]):
            tags = tags_of(batch)
            if not _ascends(np.concatenate((last, tags))):
                _check_unique_in_memory(store, part)
                break
            last = tags[-1:].copy()


def _ascends(tags: Tags) -> bool:
    halves = np.ascontiguousarray(tags).view(">u8").astype(np.uint64)
    first, second = halves[:, 0], halves[:, 1]
    is_later = first[1:] > first[:-1]
    is_later |= (first[1:] == first[:-1]) & (second[1:] > second[:-1])
    return bool(is_later.all())


def _check_unique_in_memory(store: Store, part: Part) -> None:
    tags = np.ascontiguousarray(store.tags(part))
    repeats = len(tags) - len(np.unique(tags.view(f"V{TAG_BYTES}")))
    if repeats:
        raise DataError(
            f"{store.path}: {part}: column {ID!r}: expected each id once, got {repeats:,} repeats; "
            "prepare the store again"
        )


def fingerprint(store: Store) -> str:
    """Identifies the content of a store's files as they are now; a copy has another one."""
    stats = [store.file(part).stat() for part in store.parts]
    facts = [[s.st_size, s.st_mtime_ns, s.st_ino] for s in stats]
    text = json.dumps([facts, store.schema.digest(), dict(store.schema.rows)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
