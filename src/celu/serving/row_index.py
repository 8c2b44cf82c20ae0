"""A party's rows as serving needs them: found by id or tag, numbered by the alignment, as tensors.

The rows of an alignment are numbered from 0, the training rows first. All parties number them in
the same way, so a number names a row without an id.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from celu.config.schema import ID
from celu.data.alignment import Alignment
from celu.data.dataset import Dataset
from celu.data.memory_map import open_datasets
from celu.data.store import Store
from celu.data.tags import TAG_BYTES, Tags, ascending, commitment, digest_rows, tagger

Arrays = dict[str, npt.NDArray[Any]]  # inputs of a bottom model, by name
NO_ROW = -1


class RowIndex:
    """Finds rows of a list by tag."""

    def __init__(self, tags: Tags) -> None:
        self._tags = np.ascontiguousarray(tags)
        first = _first_half(self._tags)
        is_sorted = bool((first[:-1] <= first[1:]).all())
        self._order = None if is_sorted else ascending(self._tags)
        halves = first if self._order is None else first[self._order]
        self._halves = memoryview(halves)  # type: ignore[arg-type]
        self._bytes = memoryview(self._tags.reshape(-1))  # type: ignore[arg-type]

    def find(self, tag: bytes) -> int:
        """The number of a tag's row, NO_ROW for a tag that is not in the list.

        Without NumPy, whose operations on single numbers take longer than the search.
        """
        half = int.from_bytes(tag[:8], "big")
        position = bisect_left(self._halves, half)
        while position < len(self._halves) and self._halves[position] == half:
            row = position if self._order is None else int(self._order[position])
            if self._bytes[TAG_BYTES * row : TAG_BYTES * (row + 1)] == tag:
                return row
            position += 1  # another tag with the same first half
        return NO_ROW


def _first_half(tags: Tags) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(tags).view(">u8")[:, 0].astype(np.uint64)


class ServedRows:
    """The rows of one store, training rows first, and their numbers in an alignment.

    Without an alignment, all rows are aligned in the store's order.
    """

    def __init__(self, store: Store, alignment: Alignment | None) -> None:
        self.store = store
        self.alignment = alignment
        parts = store.parts
        tags = [store.tags(part) for part in parts]
        self._tags = np.concatenate(tags)
        self._index = RowIndex(self._tags)
        if alignment is None:
            aligned = [np.arange(len(part), dtype=np.int64) for part in tags]
        else:
            aligned = [np.asarray(alignment.rows[part]) for part in parts]
        self.counts = {part: len(rows) for part, rows in zip(parts, aligned, strict=True)}
        self.commitments = {
            part: commitment(part_tags[rows])
            for part, part_tags, rows in zip(parts, tags, aligned, strict=True)
        }
        # Both ways between the rows of the store and those of the alignment.
        first_rows = np.cumsum([0, *map(len, tags)])
        self._row_of = np.concatenate([rows + first_rows[n] for n, rows in enumerate(aligned)])
        number_of = np.full(len(self._tags) + 1, NO_ROW, np.int64)  # the last place is of NO_ROW
        number_of[self._row_of] = np.arange(len(self._row_of))
        self._number_of = memoryview(number_of)  # type: ignore[arg-type]
        self._tag_of = tagger(store.schema.split.seed)

    @property
    def num_rows(self) -> int:
        """The number of rows of the store."""
        return len(self._tags)

    @property
    def num_aligned(self) -> int:
        """The number of rows of the alignment."""
        return len(self._row_of)

    def contract(self) -> dict[str, Any]:
        """What a peer's rows must have in common with these."""
        contract: dict[str, Any] = {}
        for part in self.store.parts:
            contract[f"{part}_rows"] = self.counts[part]
            contract[f"{part}_ids"] = self.commitments[part]
        return contract

    def digest(self, start: int, stop: int) -> bytes:
        """A digest of consecutive rows of the alignment, which a host sends with their Z."""
        return digest_rows(self._tags[self._row_of[start:stop]])

    def locate(self, ids: Sequence[str]) -> tuple[list[int], list[int], list[bytes]]:
        """The store's rows of ids, their numbers in the alignment, and their tags.

        NO_ROW stands for a row that the store lacks, and for the number of one that is not aligned.
        """
        rows, numbers, tags = [], [], []
        for text in ids:
            tag = self._tag_of(text.encode())
            row = self._index.find(tag)
            rows.append(row)
            numbers.append(self._number_of[row])
            tags.append(tag)
        return rows, numbers, tags

    def find(self, tags: Sequence[bytes]) -> list[int]:
        """The store's rows with these tags, NO_ROW for those that it lacks."""
        return [self._index.find(tag) for tag in tags]

    def rows(self, numbers: Sequence[int]) -> list[int]:
        """The store's rows of numbers of the alignment."""
        return [int(self._row_of[number]) for number in numbers]

    def ids(self) -> Any:
        """The ids of all rows of the store, as one Arrow array."""
        import pyarrow as pa

        parts = self.store.parts
        batches = [batch.column(ID) for part in parts for batch in self.store.batches(part, [ID])]
        return pa.chunked_array(batches, pa.string()).combine_chunks()


class InputRows:
    """The rows of a store as inputs of a bottom model, by row; raises what `open_datasets` does.

    A guest without features has no inputs.
    """

    def __init__(self, store: Store, inputs: Mapping[str, Sequence[str]]) -> None:
        self._train: Dataset | None = None
        self._parts: list[Arrays] = []
        # Where each part ends in the rows of the store.
        self._stops = list(accumulate(store.schema.rows[part] for part in store.parts))
        if inputs:
            opened = open_datasets(store, inputs, label=False)
            self._train = opened.train
            self._parts = [
                {name: tensor.numpy() for name, tensor in part.inputs.items()}
                for part in opened.parts.values()
            ]

    @property
    def dataset(self) -> Dataset | None:
        """The training rows, which have the columns and sizes of all rows; None without inputs."""
        return self._train

    def take(self, rows: Sequence[int]) -> Arrays | None:
        """These rows of the store, each input as an array; None without inputs. Do not change it.

        Codes have the type of the store's files.
        """
        if self._train is None:
            return None
        if len(rows) == 1:  # a view of the mapped files
            part = bisect_right(self._stops, rows[0])
            row = rows[0] - (self._stops[part - 1] if part else 0)
            return {name: array[row : row + 1] for name, array in self._parts[part].items()}
        numbers = np.array(rows)
        part_of = np.searchsorted(self._stops, numbers, side="right")
        arrays = {
            name: np.empty((len(rows), *array.shape[1:]), array.dtype)
            for name, array in self._parts[0].items()
        }
        for number, (stop, part_arrays) in enumerate(zip(self._stops, self._parts, strict=True)):
            chosen = part_of == number
            first = stop - len(next(iter(part_arrays.values())))
            for name, array in part_arrays.items():
                arrays[name][chosen] = array.take(numbers[chosen] - first, axis=0)
        return arrays
