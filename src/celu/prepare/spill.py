"""Rows put aside on disk by bucket, to be taken back one bucket at a time.

One file, so that the number of buckets is not bounded by that of open files; nothing is held in
memory but where each bucket's rows are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BUCKET_BYTES = 32 << 20  # of raw text: what a bucket takes in memory is of that order
MAX_BUCKETS = 1024


def buckets_for(text_bytes: int) -> int:
    """How many buckets, for so much raw text."""
    return min(max(-(-text_bytes // BUCKET_BYTES), 1), MAX_BUCKETS)


def arrow(values: npt.NDArray[Any]) -> Any:
    """An array of numbers as Arrow's, without a copy."""
    # `pa.array` would import pandas where that is installed, only to see that it is not needed.
    values = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


class Spill:
    """Write rows with `add`, then take back each bucket with `read`; a context manager.

    Its file is removed at the end.
    """

    def __init__(self, path: Path, num_buckets: int) -> None:
        self.num_buckets = num_buckets
        self._path = path
        self._batches: list[list[int]] = [[] for _ in range(num_buckets)]
        self._num_batches = 0
        self._file = pa.OSFile(str(path), "wb")
        self._writer: Any = None
        self._reader: Any = None

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self._path.unlink()

    def add(self, batch: Any, keys: npt.NDArray[np.unsignedinteger[Any]]) -> None:
        """Put a batch's rows aside; a row's bucket is its 16-bit key's share of 2**16."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        buckets = (keys.astype(np.uint32) * self.num_buckets) >> 16
        if self.num_buckets > 1:
            # 16 bits are sorted by radix, in linear time.
            batch = batch.take(arrow(np.argsort(buckets.astype(np.uint16), kind="stable")))
        ends = np.cumsum(np.bincount(buckets, minlength=self.num_buckets)).tolist()
        start = 0
        for bucket, end in enumerate(ends):
            if end > start:
                self._writer.write_batch(batch.slice(start, end - start))
                self._batches[bucket].append(self._num_batches)
                self._num_batches += 1
            start = end

    def read(self, bucket: int) -> Any:
        """A bucket's rows as one batch, in the order they were added; None where it has none."""
        if not self._batches[bucket]:
            return None
        if self._reader is None:
            self._writer.close()
            self._file.close()
            self._file = pa.OSFile(str(self._path))
            self._reader = pa.ipc.open_file(self._file)
        batches = [self._reader.get_batch(number) for number in self._batches[bucket]]
        if len(batches) == 1:
            return batches[0]
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
