"""Rows to score, chunk by chunk: from a store, whose rows are read once, or from a dataset.

All parties cut the same rows into the same chunks, so a chunk's number names it. The aligned rows
come first, training rows before test rows. Rows of the guest that no host has follow.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from celu.config.schema import ID, Part
from celu.data.alignment import Alignment
from celu.data.dataset import Batch, Dataset
from celu.data.memory_map import open_datasets
from celu.data.row_stream import Block, RowNumbers, RowStream, check_unique, fingerprint
from celu.data.store import Store
from celu.errors import AlignmentError, DataError
from celu.prepare.prefetch import prefetch
from celu.serving.model import Model


class Section(NamedTuple):
    """Rows of one part: those that all parties have, or the others of this party."""

    part: Part
    is_aligned: bool
    rows: int


class Piece(NamedTuple):
    """Consecutive chunks of a section: the number of the first, and their rows."""

    section: Section
    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class ChunkPlan:
    """How rows are cut into chunks. A chunk never spans two sections."""

    sections: tuple[Section, ...]
    chunk_rows: int

    @property
    def num_chunks(self) -> int:
        """The number of all chunks."""
        return sum(map(self._chunks, self.sections))

    @property
    def num_aligned(self) -> int:
        """The number of chunks of aligned rows, which come first."""
        return sum(self._chunks(section) for section in self.sections if section.is_aligned)

    def rows(self, first: int, stop: int) -> int:
        """The number of rows in the chunks from `first` to before `stop`."""
        return sum(piece.stop - piece.start for piece in self.pieces(first, stop))

    def pieces(self, first: int, stop: int) -> Iterator[Piece]:
        """The chunks from `first` to before `stop`, by section."""
        begin = 0
        for section in self.sections:
            end = begin + self._chunks(section)
            low, high = max(first, begin), min(stop, end)
            if low < high:
                start = (low - begin) * self.chunk_rows
                rows_stop = min((high - begin) * self.chunk_rows, section.rows)
                yield Piece(section, low, start, rows_stop)
            begin = end

    def _chunks(self, section: Section) -> int:
        return -(-section.rows // self.chunk_rows)


class Chunk(NamedTuple):
    """Some rows of a section; `ids` is an Arrow array of strings, None for rows without ids."""

    number: int
    batch: Batch
    ids: Any


class RowSource(Protocol):
    """One party's rows to score."""

    @property
    def plan(self) -> ChunkPlan:
        """How the rows are cut into chunks."""
        ...

    @property
    def commitments(self) -> Mapping[Part, str]:
        """The commitments to the aligned rows of each part."""
        ...

    @property
    def token(self) -> str:
        """Identifies the content of the rows."""
        ...

    def chunks(self, first: int, stop: int) -> Generator[Chunk, None, None]:
        """The chunks from `first` to before `stop`; raises DataError for invalid rows."""
        ...


class StoreRows:
    """The rows of a store, read once and in order.

    Without an alignment, all rows are aligned. With `unaligned`, which is for the guest, the other
    rows follow. Raises AlignmentError if the store changed since it was aligned.
    """

    def __init__(
        self,
        store: Store,
        model: Model,
        alignment: Alignment | None,
        chunk_rows: int,
        *,
        unaligned: bool = False,
    ) -> None:
        check_store(store, model)
        counts = store.schema.rows if alignment is None else alignment.facts.rows
        sections = [Section(part, True, counts[part]) for part in store.parts]
        if unaligned:
            rows = store.schema.rows
            sections += [Section(part, False, rows[part] - counts[part]) for part in store.parts]
        self.plan = ChunkPlan(tuple(sections), chunk_rows)
        self.token = fingerprint(store)
        self.store_rows = sum(store.schema.rows.values())
        self._needs_ids = model.facts.role == "guest"
        if self._needs_ids:
            check_unique(store)
        self._sorted: DatasetRows | None = None
        numbers: RowNumbers | None = None
        if alignment is not None:
            numbers = alignment.numbers
            if not alignment.is_ascending():  # the store was not written by `celu prepare`
                self._sorted = _sorted_rows(store, model, alignment, chunk_rows, self._needs_ids)
                ascending = {part: np.sort(alignment.rows[part]) for part in store.parts}
                numbers = lambda part, start, stop: ascending[part][start:stop]  # noqa: E731
        inputs = model.facts.inputs
        self._stream = RowStream(store, inputs, counts, numbers, ids=self._needs_ids)
        if self._sorted is not None:
            self.commitments = self._sorted.commitments
            return
        self.commitments = self._stream.commitments()
        if alignment is not None and self.commitments != alignment.facts.commitments:
            raise AlignmentError(
                'the store\'s rows changed since the alignment; run "celu align" again at all '
                "parties"
            )

    def chunks(self, first: int, stop: int) -> Generator[Chunk, None, None]:
        """See `RowSource`."""
        for piece in self.plan.pieces(first, stop):
            part, is_aligned, _ = piece.section
            if is_aligned and self._sorted is not None:
                count = -(-(piece.stop - piece.start) // self.plan.chunk_rows)
                yield from self._sorted.chunks(piece.number, piece.number + count)
                continue
            blocks = self._stream.blocks(part, aligned=is_aligned, start=piece.start)
            with closing(prefetch(blocks)) as ahead:
                cut = _cut(ahead, self.plan.chunk_rows, piece.stop - piece.start)
                for number, block in enumerate(cut, start=piece.number):
                    yield Chunk(number, block.batch(), block.ids)


class DatasetRows:
    """The rows of datasets, by part. With `ids`, the guest's, chunks have the ids of their rows."""

    def __init__(
        self,
        datasets: Mapping[Part, Dataset],
        chunk_rows: int,
        *,
        ids: Mapping[Part, Any] | None = None,
        token: str | None = None,
    ) -> None:
        self._datasets = dict(datasets)
        self._ids = ids
        sections = [Section(part, True, rows.num_rows) for part, rows in datasets.items()]
        self.plan = ChunkPlan(tuple(sections), chunk_rows)
        self.commitments = {part: dataset.commitment for part, dataset in datasets.items()}
        self.token = token or secrets.token_hex(32)  # nothing tells whether they change

    def chunks(self, first: int, stop: int) -> Generator[Chunk, None, None]:
        """See `RowSource`."""
        size = self.plan.chunk_rows
        for piece in self.plan.pieces(first, stop):
            part = piece.section.part
            for number, start in enumerate(
                range(piece.start, piece.stop, size), start=piece.number
            ):
                end = min(start + size, piece.stop)
                batch = self._datasets[part].take(slice(start, end))
                ids = None if self._ids is None else self._ids[part][start:end]
                yield Chunk(number, batch, ids)


def check_store(store: Store, model: Model) -> None:
    """Raise DataError unless a store's columns mean what they meant when the model was trained."""
    facts = model.facts
    if facts.schema_digest is None:
        raise DataError(
            f"{store.path}: model {model.name} was not trained on a store; pass its rows as a "
            "Dataset to celu.predict in Python"
        )
    if store.schema.digest() != facts.schema_digest:
        raise DataError(
            f"{store.path}: expected the schema of model {model.name} "
            f"({facts.schema_digest[:16]}), got {store.schema.digest()[:16]}; encode the rows with "
            '"celu prepare --like STORE", where STORE is the store of the training rows'
        )


def _sorted_rows(
    store: Store, model: Model, alignment: Alignment, chunk_rows: int, needs_ids: bool
) -> DatasetRows:
    """Aligned rows in the common order, of a store in another order; ids are held in memory."""
    import pyarrow as pa

    read = open_datasets(store, model.facts.inputs, label=False, alignment=alignment)
    ids: dict[Part, Any] = {}
    for part in store.parts if needs_ids else ():
        batches = [batch.column(ID) for batch in store.batches(part, [ID])]
        joined = pa.chunked_array(batches, pa.string()).combine_chunks()
        ids[part] = joined.take(pa.array(alignment.rows[part]))
    return DatasetRows(read.parts, chunk_rows, ids=ids if needs_ids else None)


def _cut(blocks: Iterable[Block], size: int, num_rows: int) -> Iterator[Block]:
    """Cut the first `num_rows` rows into chunks of `size` rows; the last may have fewer."""
    left, rest = num_rows, None
    for block in blocks:
        start = 0
        if rest is not None:
            start = min(size, left) - len(rest)
            rest = Block.join(rest, block.cut(0, start))
            if len(rest) < min(size, left):
                continue
            yield rest
            left, rest = left - len(rest), None
        while left and len(block) - start >= min(size, left):
            stop = start + min(size, left)
            yield block.cut(start, stop)
            left, start = left - (stop - start), stop
        if not left:
            return
        if start < len(block):
            rest = block.cut(start, len(block))
    if left:
        raise DataError(
            f"expected {num_rows:,} more rows in the store, got {num_rows - left:,}; did it change?"
        )


def row_contract(rows: RowSource) -> dict[str, Any]:
    """What the parties compare of their aligned rows, by field."""
    contract: dict[str, Any] = {}
    for section in rows.plan.sections:
        if section.is_aligned:
            contract[f"{section.part}_rows"] = section.rows
            contract[f"{section.part}_ids"] = rows.commitments[section.part]
    return contract
