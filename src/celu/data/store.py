"""A party's store: prepared rows in Parquet files, one for each part, and their schema.

    STORE/schema.json       the columns with their fitted values (`celu.config.schema`)
    STORE/train.parquet     id, tag, label and weight at a guest, numbers (float32), categories
                            (int32 codes), bags (lists of int32 codes)
    STORE/test.parquet      the same columns of the test rows
    STORE/validation.parquet    ... and of the validation rows, if the split has any

It opens and writes stores. It does not check values (`gate`) or make tensors (`memory_map`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from celu.config.columns import FittedCategory, FittedNumber
from celu.config.schema import (
    ID,
    LABEL,
    RESERVED,
    SCHEMA_FILE,
    TAG,
    WEIGHT,
    Part,
    Split,
    StoreSchema,
    number_columns,
    read_store_schema,
)
from celu.data.folder import NewFolder
from celu.data.parquet_sizes import check_sizes
from celu.data.tags import TAG_BYTES, Tags, make_tags
from celu.errors import DataError

if TYPE_CHECKING:
    from celu.data.alignment import Alignment
    from celu.data.memory_map import StoreDatasets

PARTS: tuple[Part, Part] = ("train", "test")  # which every store has
READ_ROWS = 1 << 16


@dataclass(frozen=True)
class Store:
    """A store whose files exist, with the columns, types and row counts of its schema."""

    path: Path
    schema: StoreSchema

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its parts: train and test, and validation between them if it has that."""
        return self.schema.parts

    def file(self, part: Part) -> Path:
        """The Parquet file of a part."""
        return self.path / f"{part}.parquet"

    def inputs(self) -> dict[str, list[str]]:
        """All features as inputs of a bottom model: "ids" and "numbers", where there are any."""
        return self.schema.inputs()

    def datasets(
        self,
        inputs: Mapping[str, Sequence[str]] | None = None,
        *,
        label: bool | None = None,
        alignment: Alignment | Path | str | None = None,
    ) -> StoreDatasets:
        """The rows of each part, mapped from files; see `open_datasets`.

        `alignment` is one that `celu align` wrote, or the path of its folder.
        """
        from celu.data.alignment import read_alignment
        from celu.data.memory_map import open_datasets

        if isinstance(alignment, str | Path):
            alignment = read_alignment(alignment, self)
        return open_datasets(self, inputs, label=label, alignment=alignment)

    def batches(self, part: Part, columns: Sequence[str], *, start: int = 0) -> Iterator[Any]:
        """The rows of a part as Arrow record batches of these columns, in the store's order.

        With `start`, from this row on; earlier row groups are not read.
        """
        import pyarrow.parquet as pq

        with _readable(self.file(part)):
            file = pq.ParquetFile(self.file(part), page_checksum_verification=True)
            check_sizes(self.file(part), columns)
            groups, num_rows = _groups_from(file.metadata, start)
            for batch in _read_groups(file, groups, columns):
                num_rows += batch.num_rows
                self._check_rows(part, num_rows, num_rows <= self.schema.rows[part])
                early = max(0, start - (num_rows - batch.num_rows))
                if early < batch.num_rows:
                    yield batch.slice(early)
            self._check_rows(part, num_rows, num_rows == self.schema.rows[part])

    def tags_between(self, part: Part, start: bytes, stop: bytes) -> Iterator[tuple[int, Tags]]:
        """Blocks of a part's tags, each with the number of its first row: all of a range, and more.

        Only row groups with tags from `start` to before `stop` are read, and at most two more.
        """
        import pyarrow.parquet as pq

        path = self.file(part)
        with _readable(path):
            file = pq.ParquetFile(path, page_checksum_verification=True)
            check_sizes(path, [TAG])
            firsts = np.cumsum([0, *(size for _, size in _group_sizes(file))])
            for group in _groups_between(file, start, stop):
                num_rows = int(firsts[group])
                for batch in _read_groups(file, [group], [TAG]):
                    yield num_rows, tags_of(batch)
                    num_rows += batch.num_rows
                self._check_rows(part, num_rows, num_rows == firsts[group + 1])

    def _check_rows(self, part: Part, num_rows: int, is_valid: bool) -> None:
        if not is_valid:
            raise DataError(
                f"{self.file(part)}: expected {self.schema.rows[part]} rows, as in the schema, "
                f"got {num_rows}; prepare the store again"
            )

    def tags(self, part: Part) -> Tags:
        """The tags of a part's rows, in the store's order."""
        return np.concatenate(
            [np.zeros((0, TAG_BYTES), np.uint8), *map(tags_of, self.batches(part, [TAG]))]
        )


def _read_groups(file: Any, groups: Sequence[int], columns: Sequence[str]) -> Iterator[Any]:
    """The record batches of row groups; one reader for all would hold what it has read."""
    for group in groups:
        yield from file.iter_batches(
            READ_ROWS, row_groups=[group], columns=list(columns), use_threads=False
        )


def _groups_from(metadata: Any, start: int) -> tuple[list[int], int]:
    """The row groups with the rows from `start` on, and the number of rows before them."""
    num_rows = 0
    for group in range(metadata.num_row_groups):
        if num_rows + metadata.row_group(group).num_rows > start:
            return list(range(group, metadata.num_row_groups)), num_rows
        num_rows += metadata.row_group(group).num_rows
    return [], num_rows


def _group_sizes(file: Any) -> list[tuple[int, int]]:
    """The row groups, and how many rows each has."""
    return [
        (group, file.metadata.row_group(group).num_rows) for group in range(file.num_row_groups)
    ]


def _groups_between(file: Any, start: bytes, stop: bytes) -> Iterator[int]:
    """The row groups that may have tags of a range.

    Where the file has statistics of its tags, they tell. `celu prepare` writes none, and rows in
    the order of their tags: there the first group is found by bisection.
    """
    groups = [group for group, size in _group_sizes(file) if size]
    column = [file.schema.column(at).path for at in range(len(file.schema))].index(TAG)
    statistics = [file.metadata.row_group(group).column(column).statistics for group in groups]
    if all(found is not None and found.has_min_max for found in statistics):
        for group, found in zip(groups, statistics, strict=True):
            if found.max >= start and found.min < stop:
                yield group
        return

    def first_tag(group: int) -> bytes:
        batches = file.iter_batches(1, row_groups=[group], columns=[TAG], use_threads=False)
        return bytes(tags_of(next(batches))[0])

    before = bisect_left(groups, start, key=first_tag)
    for group in groups[max(0, before - 1) :]:
        if first_tag(group) >= stop:
            return
        yield group


def to_numpy(column: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """The values of a column without nulls: [rows], or [rows, values] for lists.

    A null in a list is -1, which is no code.
    """
    import pyarrow as pa

    if not pa.types.is_fixed_size_list(column.type):
        values: np.ndarray[Any, np.dtype[Any]] = column.to_numpy()
        return values
    flat = column.flatten()
    if flat.null_count:
        flat = flat.fill_null(-1)
    lists: np.ndarray[Any, np.dtype[Any]] = flat.to_numpy().reshape(
        len(column), column.type.list_size
    )
    return lists


def tags_of(batch: Any) -> Tags:
    """The tags of a record batch; raises DataError for nulls."""
    column = batch.column(TAG)
    if column.null_count:
        raise DataError(
            f"column {TAG!r}: expected a tag in every row, got {column.null_count} nulls"
        )
    start = column.offset * TAG_BYTES
    whole = np.frombuffer(column.buffers()[1], np.uint8)
    return whole[start : start + len(column) * TAG_BYTES].reshape(-1, TAG_BYTES)


def open_store(path: Path | str) -> Store:
    """Open a store; raises DataError naming the file, the column, what was expected and got."""
    import pyarrow.parquet as pq

    path = Path(path)
    schema = read_store_schema(path)
    store = Store(path, schema)
    expected = arrow_schema(schema)
    for part in store.parts:
        file = store.file(part)
        with _readable(file):
            metadata = pq.read_metadata(file)
            found = metadata.schema.to_arrow_schema()
            names = ", ".join(found.names[:20])
        for field in expected:
            at = found.get_field_index(field.name)
            if at < 0:
                raise DataError(f"{file}: expected a column {field.name!r}, got {names}")
            if found.field(at).type != field.type:
                raise DataError(
                    f"{file}: column {field.name!r}: expected {field.type}, as in the schema, "
                    f"got {found.field(at).type}"
                )
        store._check_rows(part, metadata.num_rows, metadata.num_rows == schema.rows[part])
    return store


def arrow_schema(schema: StoreSchema) -> Any:
    """The Parquet columns of a store with this schema."""
    import pyarrow as pa

    fields = [pa.field(ID, pa.string()), pa.field(TAG, pa.binary(TAG_BYTES))]
    if schema.has_labels:
        fields.append(pa.field(LABEL, pa.int64() if schema.label_type == "class" else pa.float32()))
    if schema.has_weights:
        fields.append(pa.field(WEIGHT, pa.float32()))
    fields += [pa.field(name, pa.float32()) for name in number_columns(schema)]
    fields += [pa.field(name, pa.int32()) for name in schema.categories]
    fields += [
        pa.field(name, pa.list_(pa.int32(), bag.max_values)) for name, bag in schema.bags.items()
    ]
    return pa.schema(fields)


class StoreWriter:
    """Writes a store table by table; use as a context manager.

    A store that exists is replaced on exit; after an error it stays and nothing else is left.
    `schema.rows` is filled in.
    """

    def __init__(self, path: Path, schema: StoreSchema) -> None:
        self._path = path
        self._schema = schema
        self._arrow = arrow_schema(schema)
        self._rows: dict[Part, int] = dict.fromkeys(schema.split.parts, 0)
        self._stack = ExitStack()

    def __enter__(self) -> StoreWriter:
        import pyarrow.parquet as pq

        folder = self._stack.enter_context(NewFolder(self._path, SCHEMA_FILE, replace=True))
        self._files = {
            part: pq.ParquetWriter(
                folder.path / f"{part}.parquet",
                self._arrow,
                compression="zstd",
                write_page_checksum=True,
            )
            for part in self._rows
        }
        self._folder = folder
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: Any) -> None:
        with self._stack:  # removes the folder unless it is published
            for file in self._files.values():
                file.close()
            if kind is None:
                self._schema.model_copy(update={"rows": self._rows}).write(self._folder.path)
                self._folder.publish()

    def write(self, part: Part, table: Any) -> None:
        """Append rows to a part."""
        table = table.select(self._arrow.names).cast(self._arrow)
        self._files[part].write_table(table, row_group_size=READ_ROWS)
        self._rows[part] += table.num_rows


def coded_schema(columns: Sequence[str], sizes: Mapping[str, int], split: Split) -> StoreSchema:
    """The schema of rows that are encoded already: columns with a size are codes."""
    numbers = [name for name in columns if name not in sizes and name not in RESERVED]
    return StoreSchema(
        id=ID,
        label=LABEL if LABEL in columns else None,
        label_type="number" if LABEL in columns else None,
        split=split,
        numbers={name: FittedNumber() for name in numbers},
        categories={name: FittedCategory(buckets=size - 1) for name, size in sizes.items()},
    )


def with_ids(table: Any, ids: Sequence[str], split: Split) -> Any:
    """An Arrow table with the columns `id` and `tag` appended."""
    import pyarrow as pa

    tags = pa.array(map(bytes, make_tags(ids, split.seed)), pa.binary(TAG_BYTES))
    return table.append_column(ID, pa.array(ids, pa.string())).append_column(TAG, tags)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0][:200]
        raise DataError(
            f"{file}: expected a readable Parquet file, got: {reason}; prepare the store again"
        ) from error
