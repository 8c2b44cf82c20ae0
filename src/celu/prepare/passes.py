"""The two passes of `prepare`: raw rows are put aside by their tags, then sorted and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from celu.config.schema import ROW_NUMBER, Part, Source, Split
from celu.data.store import PARTS
from celu.data.tags import TAG_BYTES, Tags, ascending, held_out, tags_of_texts
from celu.errors import ConfigError, DataError
from celu.prepare.encoders import Mask
from celu.prepare.new_store import NewStore
from celu.prepare.raw import Block, Kind, RawFile, ahead
from celu.prepare.spill import Spill, arrow

ROW_GROUP = 100_000  # the most rows of a row group; half as many are waited for

# Called with a phase ("reading", in bytes; "writing", in buckets), how much is done, and of what.
Progress = Callable[[str, int, int], None]


class Frame(NamedTuple):
    """What all stores of one scan have in common."""

    source: Source
    id: str
    split: Split
    all_test: bool = False

    def test_rows(self, tags: Tags) -> Mask:
        """Which rows are held out."""
        return np.ones(len(tags), bool) if self.all_test else held_out(tags, self.split.test)


def all_kinds(frame: Frame, stores: Sequence[NewStore]) -> dict[str, Kind]:
    """How to read each column that any store wants; raises ConfigError for one read two ways."""
    kinds: dict[str, Kind] = {} if frame.id == ROW_NUMBER else {frame.id: "text"}
    for store in stores:
        for name, kind in store.kinds().items():
            if kinds.setdefault(name, kind) != kind:
                raise ConfigError(
                    f"column {name!r}: expected one use in all stores of a scan, got "
                    f"{kinds[name]} and {kind}"
                )
    return kinds


def scan(
    files: Sequence[RawFile],
    kinds: Mapping[str, Kind],
    frame: Frame,
    stores: Sequence[NewStore],
    spill: Spill,
    progress: Progress,
) -> None:
    """Put all rows aside, learning from those of training; raises DataError, at a file's end."""
    total = sum(file.num_bytes for file in files)
    num_rows = before = 0
    with ThreadPoolExecutor(1) as pool:
        for file in files:
            without_id = 0
            added: Future[None] | None = None
            for block in ahead(file.blocks(kinds)):
                ids = _ids(block, frame.id, num_rows)
                without_id += ids.null_count
                texts = ids.fill_null("").cast(pa.binary()).to_pylist()
                tags = tags_of_texts(texts, frame.split.seed)
                batch = _kept(ids, tags, block, ~frame.test_rows(tags), stores)
                if added is not None:
                    added.result()
                added = pool.submit(spill.add, batch, _keys(tags))
                num_rows += block.num_rows
                progress("reading", before + block.position, total)
            if added is not None:
                added.result()
            _check(file, frame.id, without_id, stores)
            before += file.num_bytes


def _check(file: RawFile, row_id: str, without_id: int, stores: Sequence[NewStore]) -> None:
    problems = [problem for s in stores for c in s.columns() for problem in c.problems()]
    if without_id:
        text = f"column {row_id!r}: expected an id in every row, got {without_id:,} rows without"
        problems.insert(0, text)
    if problems:
        raise DataError("\n".join(f"{file.path}: {problem}" for problem in problems))


def _ids(block: Block, column: str, first_row: int) -> Any:
    if column == ROW_NUMBER:
        return arrow(np.arange(first_row, first_row + block.num_rows)).cast(pa.string())
    return block.columns[column]


def _kept(ids: Any, tags: Tags, block: Block, train: Mask, stores: Sequence[NewStore]) -> Any:
    """What is put aside of a block: tag, id, then each store's columns."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(tags))]
    arrays = [pa.FixedSizeBinaryArray.from_buffers(pa.binary(TAG_BYTES), len(tags), buffers), ids]
    for store in stores:
        if store.label is not None:
            store.label.note(block.whole_labels)
        for column in store.columns():
            arrays.append(arrow(column.take(block.columns[column.name], train)))
    return pa.record_batch(arrays, names=[str(number) for number in range(len(arrays))])


def _keys(tags: Tags) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The first 16 bits of each tag, by which rows are sorted in the end."""
    return np.ascontiguousarray(tags[:, :2]).view(">u2").reshape(-1)


def check_labels(named: str, stores: Sequence[NewStore]) -> None:
    """Raise DataError where there is nothing to learn."""
    for store in stores:
        if store.label is not None and store.label.one_only():
            raise DataError(
                f"{named}: column {store.label.name!r}: expected different labels in the training "
                "rows, got the same in all"
            )


def finish(
    named: str,
    frame: Frame,
    stores: Sequence[NewStore],
    folders: Sequence[Path],
    spill: Spill,
    progress: Progress,
) -> dict[Part, int]:
    """Write the parts of all stores in the order of the tags, and return their numbers of rows.

    Raises DataError for an id that stands twice, and for a part without rows.
    """
    twice = 0
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(stores)))
        parts = []
        first = 2  # after tag and id
        for store, folder in zip(stores, folders, strict=True):
            parts.append(stack.enter_context(_Parts(store, folder, first)))
            first += len(store.columns())
        written: list[Future[None]] = []
        rows = dict.fromkeys(PARTS, 0)
        for bucket in range(spill.num_buckets):
            batch = spill.read(bucket)
            if batch is not None:
                batch, num_train, num_twice = _sorted(batch, frame)
                twice += num_twice
                rows["train"] += num_train
                rows["test"] += batch.num_rows - num_train
                for future in written:
                    future.result()
                written = [pool.submit(part.append, batch, num_train) for part in parts]
            progress("writing", bucket + 1, spill.num_buckets)
        for future in written:
            future.result()
    _check_rows(named, frame, rows, twice)
    problems = [problem for s in stores for c in s.columns() for problem in c.problems()]
    if problems:
        raise DataError("\n".join(f"{named}: {problem}" for problem in problems))
    return rows


def _check_rows(named: str, frame: Frame, rows: Mapping[Part, int], twice: int) -> None:
    if twice:
        raise DataError(
            f"{named}: column {frame.id!r}: expected each id once, got {twice:,} rows with the id "
            "of a row before"
        )
    wanted = {"train": not frame.all_test, "test": frame.split.test > 0 or frame.all_test}
    for part in PARTS:
        if wanted[part] and not rows[part]:
            raise DataError(
                f"{named}: expected rows in both parts, got none of {sum(rows.values()):,} in "
                f"{part}; give more rows, or another split"
            )


def _sorted(batch: Any, frame: Frame) -> tuple[Any, int, int]:
    """A bucket with its training rows first, each part by tag; their number; repeated tags."""
    tags = np.frombuffer(batch.column(0).buffers()[1], np.uint8)
    tags = tags[batch.column(0).offset * TAG_BYTES :][: batch.num_rows * TAG_BYTES]
    tags = tags.reshape(-1, TAG_BYTES)
    order = ascending(tags)
    halves = tags[order].view(np.uint64)
    twice = int((halves[1:] == halves[:-1]).all(axis=1).sum())
    test = frame.test_rows(tags)[order]
    order = np.concatenate((order[~test], order[test]))
    return batch.take(arrow(order)), int((~test).sum()), twice


class _Parts:
    """The two Parquet files of a store, written row group by row group; a context manager.

    `first` is where the store's columns begin in what was put aside.
    """

    def __init__(self, store: NewStore, folder: Path, first: int) -> None:
        self._columns = list(enumerate(store.columns(), start=first))
        self._schema = store.arrow()
        self._writers = [
            pq.ParquetWriter(
                folder / f"{part}.parquet",
                self._schema,
                compression="snappy",
                use_dictionary=False,  # codes of many values: a dictionary costs more than it saves
                write_statistics=False,
                write_page_checksum=True,
            )
            for part in PARTS
        ]
        self._waiting: list[list[Any]] = [[] for _ in PARTS]

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        for part, writer in enumerate(self._writers):
            if kind is None:
                self._write(part)
            writer.close()

    def append(self, batch: Any, num_train: int) -> None:
        """Take a sorted bucket, its training rows first."""
        arrays = [batch.column(1), batch.column(0)]
        for number, column in self._columns:
            arrays.append(arrow(column.finish(batch.column(number).to_numpy())))
        rows = pa.record_batch(arrays, schema=self._schema)
        for part, some in enumerate((rows.slice(0, num_train), rows.slice(num_train))):
            self._waiting[part].append(some)
            if sum(map(len, self._waiting[part])) >= ROW_GROUP // 2:
                self._write(part)

    def _write(self, part: int) -> None:
        table = pa.Table.from_batches(self._waiting[part], self._schema)
        self._waiting[part] = []
        groups = -(-table.num_rows // ROW_GROUP)
        if groups:
            self._writers[part].write_table(table, row_group_size=-(-table.num_rows // groups))
