"""The two passes of `prepare`: raw rows are spilled to disk by tag, then sorted and written.

The first pass fits the encoders, the second applies them. Both work on several blocks and columns
at a time, but each encoder gets all blocks in order, and rows are written in order: the stores do
not depend on the number of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from celu.config.schema import ROW_NUMBER, Part, Source, Split
from celu.data.store import to_numpy
from celu.data.tags import TAG_BYTES, Tags, ascending, held_out, tags_of_texts
from celu.errors import ConfigError, DataError
from celu.prepare.encoders.encoder import Mask
from celu.prepare.id_warnings import IdWarnings
from celu.prepare.new_store import NewStore
from celu.prepare.parsing import Kind
from celu.prepare.prefetch import prefetch
from celu.prepare.raw_file import Block, RawFile
from celu.prepare.spill import Spill, arrow
from celu.threads import DaemonThreads

ROW_GROUP = 100_000  # the maximum number of rows of a row group; half is the minimum
# A writer holds some 50 KB about each row group until the end, so a part has 2,000 at most.
MIN_SHARE = 1000

# Called with a phase ("reading", in bytes; "writing", in buckets), the amount done, and the total.
Progress = Callable[[str, int, int], None]


class ScanSettings(NamedTuple):
    """Settings shared by all stores of one scan; with `all_test` every row is a test row."""

    source: Source
    id: str
    split: Split
    all_test: bool = False

    def rows_of(self, part: Part, tags: Tags) -> Mask:
        """Whether each row is in a part."""
        if self.all_test:
            return np.full(len(tags), part == "test")
        if part == "test":
            return held_out(tags, self.split.test)
        if part == "validation":
            return held_out(tags, self.split.validation, start=self.split.test)
        return ~held_out(tags, self.split.test + self.split.validation)


def column_kinds(settings: ScanSettings, stores: Sequence[NewStore]) -> dict[str, Kind]:
    """How to read each column of the stores; raises ConfigError if two stores disagree."""
    kinds: dict[str, Kind] = {} if settings.id == ROW_NUMBER else {settings.id: "text"}
    for store in stores:
        for name, kind in store.kinds().items():
            if kinds.setdefault(name, kind) != kind:
                raise ConfigError(
                    f"column {name!r}: expected the same kind in all stores of a scan, got "
                    f"{kinds[name]} and {kind}"
                )
    return kinds


def spill_rows(
    files: Sequence[RawFile],
    kinds: Mapping[str, Kind],
    settings: ScanSettings,
    stores: Sequence[NewStore],
    spill: Spill,
    progress: Progress,
    threads: int,
) -> tuple[int, list[str]]:
    """Fit the encoders and spill all rows; returns their number, and warnings about ids.

    Raises DataError for bad rows, at the end of a file.
    """
    id_warnings = IdWarnings(settings.id)
    total = sum(file.num_bytes for file in files)
    num_rows = bytes_before = 0
    with DaemonThreads(1, "celu-spill") as spiller, DaemonThreads(threads, "celu-encode") as pool:
        for file in files:
            num_without_id = 0
            added: Future[None] | None = None
            for tagged in prefetch(_tagged(file, kinds, settings, num_rows, threads)):
                ids, tags, block = tagged
                num_without_id += ids.null_count
                id_warnings.add(ids)
                batch = _encode(ids, tags, block, settings.rows_of("train", tags), stores, pool)
                if added is not None:
                    added.result()
                added = spiller.submit(spill.add, batch, _keys(tags))
                num_rows += block.num_rows
                progress("reading", bytes_before + block.position, total)
            if added is not None:
                added.result()
            _check(file, settings.id, num_without_id, stores)
            bytes_before += file.num_bytes
    return num_rows, id_warnings.warnings()


def _tagged(
    file: RawFile, kinds: Mapping[str, Kind], settings: ScanSettings, num_rows: int, threads: int
) -> Generator[tuple[Any, Tags, Block], None, None]:
    """The blocks of a file with their ids and tags; `num_rows` are in the files before it."""
    for block in prefetch(file.blocks(kinds, threads)):
        ids = _ids(block, settings.id, num_rows)
        texts = ids.fill_null("").cast(pa.binary()).to_pylist()
        yield ids, tags_of_texts(texts, settings.split.seed), block
        num_rows += block.num_rows


def _check(file: RawFile, row_id: str, num_without_id: int, stores: Sequence[NewStore]) -> None:
    problems = [problem for s in stores for e in s.encoders() for problem in e.problems()]
    if num_without_id:
        expected = f"column {row_id!r}: expected an id in every row"
        problems.insert(0, f"{expected}, got {num_without_id:,} rows without")
    if problems:
        raise DataError("\n".join(f"{file.path}: {problem}" for problem in problems))


def _ids(block: Block, column: str, first_row: int) -> Any:
    if column == ROW_NUMBER:
        return arrow(np.arange(first_row, first_row + block.num_rows)).cast(pa.string())
    return block.columns[column]


def _encode(
    ids: Any, tags: Tags, block: Block, train: Mask, stores: Sequence[NewStore], pool: Executor
) -> Any:
    """The columns to spill: tag, id, then those of each store; raises DataError for too many."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(tags))]
    arrays = [pa.FixedSizeBinaryArray.from_buffers(pa.binary(TAG_BYTES), len(tags), buffers), ids]
    encoders = [encoder for store in stores for encoder in store.encoders()]
    fitted = [pool.submit(e.fit, block.columns[e.name], train) for e in encoders]
    arrays += [arrow(values.result()) for values in fitted]
    for store in stores:
        if store.budget is not None:
            store.budget.check()
    return pa.record_batch(arrays, names=[str(number) for number in range(len(arrays))])


def _keys(tags: Tags) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The first 16 bits of each tag. The second pass sorts by tag, so buckets are in order."""
    return np.ascontiguousarray(tags[:, :2]).view(">u2").reshape(-1)


def check_labels(source: str, stores: Sequence[NewStore]) -> None:
    """Raise DataError if no model could be trained on the labels or weights of a store."""
    for store in stores:
        if store.weight is not None and store.weight.are_all_zero():
            raise DataError(
                f"{source}: column {store.weight.name!r}: expected weights above 0 in the training "
                "rows, got 0 in all"
            )
        problem = None if store.label is None else store.label.refusal()
        if store.label is not None and problem is not None:
            raise DataError(f"{source}: column {store.label.name!r}: {problem}")


def write_parts(
    source: str,
    settings: ScanSettings,
    stores: Sequence[NewStore],
    folders: Sequence[Path],
    spill: Spill,
    num_rows: int,
    progress: Progress,
    threads: int,
) -> dict[Part, int]:
    """Write the parts of all stores in the order of the tags, and return their numbers of rows.

    Raises DataError for a repeated id, and for a part without rows.
    """
    repeats = 0
    with ExitStack() as stack:
        pool = stack.enter_context(DaemonThreads(len(stores), "celu-store"))
        writers = []
        first = 2  # after tag and id
        row_group = max(ROW_GROUP, num_rows // MIN_SHARE)
        parts = settings.split.parts
        for store, folder in zip(stores, folders, strict=True):
            writer = _PartWriter(store, folder, first, parts, row_group)
            writers.append(stack.enter_context(writer))
            first += len(store.encoders())
        written: list[Future[None]] = []
        rows = dict.fromkeys(parts, 0)
        for bucket, in_order in enumerate(_sorted_buckets(spill, settings, threads)):
            if in_order is not None:
                batch, counts, num_repeats = in_order
                repeats += num_repeats
                for part, count in counts.items():
                    rows[part] += count
                for future in written:
                    future.result()
                written = [pool.submit(writer.append, batch, counts) for writer in writers]
            progress("writing", bucket + 1, spill.num_buckets)
        for future in written:
            future.result()
    _check_rows(source, settings, rows, repeats)
    problems = [problem for s in stores for e in s.encoders() for problem in e.problems()]
    if problems:
        raise DataError("\n".join(f"{source}: {problem}" for problem in problems))
    return rows


def _sorted_buckets(
    spill: Spill, settings: ScanSettings, threads: int
) -> Iterator[tuple[Any, dict[Part, int], int] | None]:
    """What `_sort` returns for each bucket, in order; None for an empty one."""
    ahead: deque[Future[tuple[Any, dict[Part, int], int]] | None] = deque()
    with DaemonThreads(threads, "celu-sort") as pool:
        for bucket in range(spill.num_buckets):
            batch = spill.read(bucket)
            ahead.append(None if batch is None else pool.submit(_sort, batch, settings))
            if len(ahead) > threads:
                first = ahead.popleft()
                yield None if first is None else first.result()
        while ahead:
            first = ahead.popleft()
            yield None if first is None else first.result()


def _check_rows(
    source: str, settings: ScanSettings, rows: Mapping[Part, int], repeats: int
) -> None:
    if repeats:
        raise DataError(
            f"{source}: column {settings.id!r}: expected each id once, got {repeats:,} rows that "
            "repeat an id"
        )
    needed = {
        "train": not settings.all_test,
        "validation": not settings.all_test,
        "test": settings.split.test > 0 or settings.all_test,
    }
    for part, count in rows.items():
        if needed[part] and not count:
            raise DataError(
                f"{source}: expected rows in {' and '.join(rows)}, got none of "
                f"{sum(rows.values()):,} in {part}; add rows or change the split"
            )


def _sort(batch: Any, settings: ScanSettings) -> tuple[Any, dict[Part, int], int]:
    """Sort by part, then by tag. Returns the rows, the number in each part, and of repeats."""
    tags = np.frombuffer(batch.column(0).buffers()[1], np.uint8)
    tags = tags[batch.column(0).offset * TAG_BYTES :][: batch.num_rows * TAG_BYTES]
    tags = tags.reshape(-1, TAG_BYTES)
    order = ascending(tags)
    halves = tags[order].view(np.uint64)
    repeats = int((halves[1:] == halves[:-1]).all(axis=1).sum())
    by_part = {part: order[settings.rows_of(part, tags)[order]] for part in settings.split.parts}
    order = np.concatenate(list(by_part.values()))
    return batch.take(arrow(order)), {part: len(rows) for part, rows in by_part.items()}, repeats


class _PartWriter:
    """The Parquet files of a store, written row group by row group; a context manager.

    `first` is the number of the store's first column in spilled rows, `row_group` the maximum
    number of rows of a row group.
    """

    def __init__(
        self, store: NewStore, folder: Path, first: int, parts: Sequence[Part], row_group: int
    ) -> None:
        self._row_group = row_group
        self._encoders = list(enumerate(store.encoders(), start=first))
        self._schema = store.arrow_schema()
        self._writers = [
            pq.ParquetWriter(
                folder / f"{part}.parquet",
                self._schema,
                compression="snappy",
                use_dictionary=False,  # with many distinct codes it costs more than it saves
                write_statistics=False,
                write_page_checksum=True,
            )
            for part in parts
        ]
        self._buffered: list[list[Any]] = [[] for _ in parts]

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        for part, writer in enumerate(self._writers):
            if kind is None:
                self._write(part)
            writer.close()

    def append(self, batch: Any, counts: Mapping[Part, int]) -> None:
        """Append a sorted bucket, with this number of rows of each part, one after the other."""
        arrays = [batch.column(1), batch.column(0)]
        for number, encoder in self._encoders:
            arrays += map(arrow, encoder.transform(to_numpy(batch.column(number))))
        rows = pa.record_batch(arrays, schema=self._schema)
        start = 0
        for part, count in enumerate(counts.values()):
            self._buffered[part].append(rows.slice(start, count))
            start += count
            if sum(map(len, self._buffered[part])) >= self._row_group // 2:
                self._write(part)

    def _write(self, part: int) -> None:
        table = pa.Table.from_batches(self._buffered[part], self._schema)
        self._buffered[part] = []
        groups = -(-table.num_rows // self._row_group)
        if groups:
            self._writers[part].write_table(table, row_group_size=-(-table.num_rows // groups))
