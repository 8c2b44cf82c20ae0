"""Rows spilled to disk by bucket, and read back one bucket at a time.

There is one file, in which each batch of rows points to the one of its bucket before it. So the
limit on open files does not limit the number of buckets, and memory does not grow with the rows: it
holds a position for each bucket. Where there are many buckets, rows are first spilled by ranges of
buckets, and each range is divided when it is read: batches stay large.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BUCKET_BYTES = 32 << 20  # of raw text; in memory a bucket takes about as much
MAX_BUCKETS = 1 << 16  # by 16-bit keys: 2 TiB of text, about 8 billion rows of 40 columns
MAX_AT_ONCE = 512  # buckets into which rows are divided at a time; a block has 16 MiB of text
_GROUP_BYTES = 16 << 20  # that are divided at a time, of a range of buckets
_POINTER = struct.Struct(
    "<qq"
)  # where the bucket's batch before this one is; the bytes of this one
Keys = npt.NDArray[np.unsignedinteger[Any]]


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
    """Write rows with `add`, then read the buckets in order with `read`; a context manager.

    The files are deleted on exit.
    """

    def __init__(self, path: Path, num_buckets: int) -> None:
        self.num_buckets = num_buckets
        self._in_range = 1 if num_buckets <= MAX_AT_ONCE else isqrt(num_buckets - 1) + 1
        self._path = path
        self._rows = _BucketFile(path, -(-num_buckets // self._in_range))
        self._range: tuple[int, _BucketFile] | None = None  # that is being read

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close_range()
        self._rows.close()

    def add(self, batch: Any, keys: Keys) -> None:
        """Append the rows of a batch; 16-bit keys are divided evenly among the buckets."""
        buckets = self._buckets(keys)
        if self._in_range > 1:
            batch = batch.append_column("key", arrow(keys.astype(np.uint16)))
        self._rows.add(batch, buckets // self._in_range)

    def read(self, bucket: int) -> Any:
        """A bucket's rows as one batch, in the order they were added; None for an empty one."""
        if self._in_range == 1:
            return _joined(list(self._rows.batches(bucket)))
        number, within = divmod(bucket, self._in_range)
        if self._range is None or self._range[0] != number:
            self._close_range()
            self._range = number, self._divided(number)
        return _joined(list(self._range[1].batches(within)))

    def _divided(self, number: int) -> _BucketFile:
        """The buckets of a range, in a file of their own."""
        path = self._path.with_name(f"{self._path.name}.range")
        divided = _BucketFile(path, self._in_range)
        try:
            group: list[Any] = []
            for batch in self._rows.batches(number):
                group.append(batch)
                if sum(one.nbytes for one in group) >= _GROUP_BYTES:
                    self._divide(group, number, divided)
                    group = []
            if group:
                self._divide(group, number, divided)
        except BaseException:
            divided.close()
            raise
        return divided

    def _divide(self, group: list[Any], number: int, divided: _BucketFile) -> None:
        rows = _joined(group)
        last = rows.num_columns - 1
        buckets = self._buckets(rows.column(last).to_numpy())
        divided.add(rows.remove_column(last), buckets - np.uint32(number * self._in_range))

    def _buckets(self, keys: Keys) -> npt.NDArray[np.uint32]:
        return (keys.astype(np.uint32) * np.uint32(self.num_buckets)) >> np.uint32(16)

    def _close_range(self) -> None:
        if self._range is not None:
            self._range[1].close()
            self._range = None


class _BucketFile:
    """One file of batches, each in a bucket. All are written before the first is read."""

    def __init__(self, path: Path, num_buckets: int) -> None:
        self._num_buckets = num_buckets
        self._path = path
        self._file = path.open("w+b", buffering=1 << 20)
        self._end = 0
        self._last = [-1] * num_buckets  # where each bucket's last batch is
        self._schema: Any = None

    def add(self, batch: Any, buckets: npt.NDArray[np.unsignedinteger[Any]]) -> None:
        """Append the rows of a batch, each to its bucket."""
        self._schema = batch.schema
        if self._num_buckets > 1:
            # NumPy sorts 16-bit integers by radix, in linear time.
            batch = batch.take(arrow(np.argsort(buckets.astype(np.uint16), kind="stable")))
        ends = np.cumsum(np.bincount(buckets, minlength=self._num_buckets)).tolist()
        start = 0
        for bucket, end in enumerate(ends):
            if end > start:
                data = batch.slice(start, end - start).serialize()
                self._file.write(_POINTER.pack(self._last[bucket], data.size))
                self._file.write(data)
                self._last[bucket] = self._end
                self._end += _POINTER.size + data.size
            start = end

    def batches(self, bucket: int) -> Iterator[Any]:
        """A bucket's batches, in the order they were added."""
        self._file.flush()
        places = []
        place = self._last[bucket]
        while place >= 0:
            before, size = _POINTER.unpack(self._read(place, _POINTER.size))
            places.append((place + _POINTER.size, size))
            place = before
        for start, size in reversed(places):
            data = pa.py_buffer(self._read(start, size))
            yield pa.ipc.read_record_batch(data, self._schema)

    def close(self) -> None:
        """Delete the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _read(self, start: int, size: int) -> bytes:
        found = os.pread(self._file.fileno(), size, start)
        if len(found) != size:
            raise OSError(f"expected {size} bytes of spilled rows, got {len(found)}")
        return found


def _joined(batches: list[Any]) -> Any:
    """The batches as one; None without any."""
    if len(batches) < 2:
        return batches[0] if batches else None
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
