"""A party's rows as serving needs them: found by id or tag, numbered by the alignment, as tensors.

The rows of an alignment are numbered from 0, the training rows first. All parties number them in
the same way, so a number names a row without an id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from celu.config.schema import ID
from celu.data.alignment import Alignment
from celu.data.dataset import Batch, Dataset
from celu.data.memory_map import open_datasets
from celu.data.store import PARTS, Store
from celu.data.tags import TAG_BYTES, Tags, ascending, commitment, digest_rows, make_tags

Numbers = npt.NDArray[np.int64]
NO_ROW = -1


class RowIndex:
    """Finds rows of a list by tag."""

    def __init__(self, tags: Tags) -> None:
        self._tags = np.ascontiguousarray(tags)
        first = _first_half(self._tags)
        is_sorted = bool((first[:-1] <= first[1:]).all())
        self._order = None if is_sorted else ascending(self._tags)
        self._sorted = first if self._order is None else first[self._order]

    def find(self, tags: Tags) -> Numbers:
        """The number of each tag's row, NO_ROW for a tag that is not in the list."""
        found = np.full(len(tags), NO_ROW, np.int64)
        halves = _first_half(tags)
        starts = np.searchsorted(self._sorted, halves, side="left")
        for index, start in enumerate(starts.tolist()):
            position = start
            while position < len(self._sorted) and self._sorted[position] == halves[index]:
                row = position if self._order is None else int(self._order[position])
                if (self._tags[row] == tags[index]).all():
                    found[index] = row
                    break
                position += 1  # another tag with the same first half
        return found


def _first_half(tags: Tags) -> npt.NDArray[np.uint64]:
    halves = np.ascontiguousarray(tags).view(">u8").astype(np.uint64)
    return np.ascontiguousarray(halves[:, 0])


class ServedRows:
    """The rows of one store, training rows first, and their numbers in an alignment.

    Without an alignment, all rows are aligned in the store's order.
    """

    def __init__(self, store: Store, alignment: Alignment | None) -> None:
        self.store = store
        self.alignment = alignment
        tags = [store.tags(part) for part in PARTS]
        self._num_train = len(tags[0])
        self._tags = np.concatenate(tags)
        self._index = RowIndex(self._tags)
        if alignment is None:
            aligned = [np.arange(len(part), dtype=np.int64) for part in tags]
        else:
            aligned = [np.asarray(alignment.rows[part]) for part in PARTS]
        self.counts = {part: len(rows) for part, rows in zip(PARTS, aligned, strict=True)}
        self.commitments = {
            part: commitment(part_tags[rows])
            for part, part_tags, rows in zip(PARTS, tags, aligned, strict=True)
        }
        # Both ways between the rows of the store and those of the alignment.
        self._row_of = np.concatenate([aligned[0], aligned[1] + self._num_train])
        self._number_of = np.full(len(self._tags), NO_ROW, np.int64)
        self._number_of[self._row_of] = np.arange(len(self._row_of))

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
        for part in PARTS:
            contract[f"{part}_rows"] = self.counts[part]
            contract[f"{part}_ids"] = self.commitments[part]
        return contract

    def digest(self, start: int, stop: int) -> bytes:
        """A digest of consecutive rows of the alignment, which a host sends with their Z."""
        return digest_rows(self._tags[self._row_of[start:stop]])

    def tags_of(self, ids: Sequence[str]) -> Tags:
        """The tags of ids, as in the store."""
        return make_tags(ids, self.store.schema.split.seed).reshape(-1, TAG_BYTES)

    def find(self, tags: Tags) -> Numbers:
        """The store's rows with these tags, NO_ROW for those that it lacks."""
        return self._index.find(tags)

    def numbers(self, rows: Numbers) -> Numbers:
        """The alignment's numbers of rows of the store; NO_ROW for those that are not aligned."""
        known = rows != NO_ROW
        numbers = np.full(len(rows), NO_ROW, np.int64)
        numbers[known] = self._number_of[rows[known]]
        return numbers

    def rows(self, numbers: Numbers) -> Numbers:
        """The store's rows of numbers of the alignment."""
        return self._row_of[numbers]

    def ids(self) -> Any:
        """The ids of all rows of the store, as one Arrow array."""
        import pyarrow as pa

        batches = [batch.column(ID) for part in PARTS for batch in self.store.batches(part, [ID])]
        return pa.chunked_array(batches, pa.string()).combine_chunks()


class InputRows:
    """The rows of a store as inputs of a bottom model, by row; raises what `open_datasets` does.

    A guest without features has no inputs.
    """

    def __init__(self, store: Store, inputs: Mapping[str, Sequence[str]]) -> None:
        self._datasets: tuple[Dataset, Dataset] | None = None
        self._num_train = store.schema.rows["train"]
        if inputs:
            opened = open_datasets(store, inputs, label=False)
            self._datasets = opened.train, opened.test

    @property
    def dataset(self) -> Dataset | None:
        """The training rows, which have the columns and sizes of all rows; None without inputs."""
        return None if self._datasets is None else self._datasets[0]

    def take(self, rows: Numbers) -> Batch | None:
        """These rows of the store; None without inputs."""
        if self._datasets is None:
            return None
        train, test = self._datasets
        is_test = rows >= self._num_train
        if not is_test.any():
            return train.take(torch.from_numpy(rows))
        if is_test.all():
            return test.take(torch.from_numpy(rows - self._num_train))
        both = Batch.join(
            [
                train.take(torch.from_numpy(rows[~is_test])),
                test.take(torch.from_numpy(rows[is_test] - self._num_train)),
            ]
        )
        gathered = np.concatenate([np.flatnonzero(~is_test), np.flatnonzero(is_test)])
        order = np.argsort(gathered)
        index = torch.from_numpy(order)
        return Batch({n: t[index] for n, t in both.inputs.items()}, None, both.tags[order])
