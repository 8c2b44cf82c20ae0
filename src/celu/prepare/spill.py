"""Rows spilled to disk by bucket, and read back one bucket at a time.

There is one file, so the limit on open files does not limit the number of buckets. Memory holds
only the positions of each bucket's rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BUCKET_BYTES = 32 << 20  # of raw text; in memory a bucket takes about as much
MAX_BUCKETS = 1024


def buckets_for(text_bytes: int) -> int:
    """The number of buckets for this much raw text."""
    return min(max(-(-text_bytes // BUCKET_BYTES), 1), MAX_BUCKETS)


def arrow(values: npt.NDArray[Any]) -> Any:
    """A NumPy array of numbers as an Arrow array, without a copy; of lists if it is a matrix."""
    # `pa.array` imports pandas if that is installed, which takes longer than the conversion.
    values = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(values.dtype)
    flat = pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(values)])
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


class Spill:
    """Write rows with `add`, then read each bucket with `read`; a context manager.

    The file is deleted on exit.
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
        """Append the rows of a batch; 16-bit keys are divided evenly among the buckets."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        buckets = (keys.astype(np.uint32) * self.num_buckets) >> 16
        if self.num_buckets > 1:
            # NumPy sorts 16-bit integers by radix, in linear time.
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
        """A bucket's rows as one batch, in the order they were added; None for an empty one."""
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
