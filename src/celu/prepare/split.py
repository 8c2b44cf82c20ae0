"""Splits one raw table among several parties, for experiments with the data of one company.

Each party gets the id, some of the columns and a random share of the rows, in an order of its own,
as separate companies would hold them. Rows are shuffled in buckets on disk, so memory does not grow
with their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from celu.config.schema import ID, ROW_NUMBER, SCHEMA_FILE, Source
from celu.data.folder import NewFolder
from celu.errors import ConfigError, DataError
from celu.prepare.parsing import Kind
from celu.prepare.prefetch import prefetch
from celu.prepare.raw_file import Block, RawFile
from celu.prepare.spill import Spill, arrow, buckets_for

_KEY = "#order"


def split(
    table: Path,
    row_id: str,
    parties: Mapping[str, Sequence[str]],
    out: Path,
    *,
    keep: float = 1.0,
    seed: int = 1,
    source: Source | None = None,
) -> dict[str, int]:
    """Write OUT/PARTY.parquet for each party, and return its number of rows.

    Columns of a text file stay text, those of Parquet keep their type. A party's rows and their
    order are a function of (seed, party). Raises ConfigError or DataError, and then leaves nothing
    behind.
    """
    if not 0 < keep <= 1:
        raise ConfigError(f"keep: expected a share above 0, at most 1, got {keep}")
    file = RawFile(table, source or Source())
    kinds = _kinds(row_id, parties)
    file.check(kinds)
    buckets = buckets_for(file.text_bytes(kinds))
    with NewFolder(out, SCHEMA_FILE) as folder:
        with ExitStack() as stack:
            shares = [
                stack.enter_context(_Share(name, columns, row_id, folder.path, buckets, keep, seed))
                for name, columns in parties.items()
            ]
            num_rows = 0
            for block in prefetch(file.blocks(kinds)):
                ids = _ids(block, row_id, num_rows)
                num_rows += block.num_rows
                for share in shares:
                    share.add(block, ids)
            counts = {share.name: share.write(folder.path) for share in shares}
        for name, count in counts.items():
            if not count:
                raise DataError(f"{table}: expected rows for {name}, got none; raise keep")
        folder.publish()
    return counts


def _kinds(row_id: str, parties: Mapping[str, Sequence[str]]) -> dict[str, Kind]:
    if not parties:
        raise ConfigError("party: expected at least one, got none")
    for name, columns in parties.items():
        if not columns or len(set(columns)) != len(columns) or row_id in columns:
            raise ConfigError(
                f"party {name}: expected columns, each once and without the id, got "
                f"{', '.join(columns) or 'none'}"
            )
    kinds: dict[str, Kind] = {} if row_id == ROW_NUMBER else {row_id: "as-is"}
    return kinds | {column: "as-is" for columns in parties.values() for column in columns}


def _ids(block: Block, row_id: str, first_row: int) -> Any:
    if row_id == ROW_NUMBER:
        return arrow(np.arange(first_row, first_row + block.num_rows)).cast(pa.string())
    return block.columns[row_id]


class _Share:
    """The rows and columns of one party; a context manager."""

    def __init__(
        self,
        name: str,
        columns: Sequence[str],
        row_id: str,
        folder: Path,
        buckets: int,
        keep: float,
        seed: int,
    ) -> None:
        self.name = name
        self._columns = columns
        self._names = [ID if row_id == ROW_NUMBER else row_id, *columns]
        self._keep = keep
        name_hash = hashlib.blake2b(name.encode(), digest_size=8, person=b"celu.split").digest()
        self._random = np.random.default_rng([seed, int.from_bytes(name_hash, "little")])
        self._spill = Spill(folder / f".{name}.spill", buckets)

    def __enter__(self) -> _Share:
        return self

    def __exit__(self, *exc: object) -> None:
        self._spill.__exit__(*exc)

    def add(self, block: Block, ids: Any) -> None:
        """Spill this party's share of a block."""
        # One draw for each row, so the result does not depend on the blocks. The high half of a
        # draw selects the row, the low half orders it.
        drawn = self._random.integers(2**64, size=block.num_rows, dtype=np.uint64)
        selected = np.flatnonzero((drawn >> np.uint64(32)) < np.uint64(round(self._keep * 2**32)))
        if not len(selected):
            return
        keys: npt.NDArray[np.uint32] = drawn[selected].astype(np.uint32)
        arrays = [ids, *(block.columns[column] for column in self._columns)]
        rows = pa.record_batch(arrays, names=self._names).take(arrow(selected))
        rows = pa.record_batch([*rows.columns, arrow(keys)], names=[*self._names, _KEY])
        self._spill.add(rows, keys >> np.uint32(16))

    def write(self, folder: Path) -> int:
        """Write the Parquet file and return its number of rows."""
        num_rows = 0
        writer: Any = None
        with ExitStack() as stack:
            for bucket in range(self._spill.num_buckets):
                rows = self._spill.read(bucket)
                if rows is None:
                    continue
                order = np.argsort(rows.column(_KEY).to_numpy(), kind="stable")
                rows = rows.select(self._names).take(arrow(order))
                if writer is None:
                    path = folder / f"{self.name}.parquet"
                    writer = stack.enter_context(pq.ParquetWriter(path, rows.schema))
                writer.write_batch(rows)
                num_rows += rows.num_rows
        return num_rows
