"""How many rows a host answers: per second, and different rows per day.

A bitmap of rows is mapped from a file. A row is marked there before its Z is sent, and a killed
process loses nothing that it wrote to mapped memory; so a restart changes no count.

    FOLDER/quota.bin   magic, day, rows answered today under other alignments, then one bit a row
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from celu.data.folder import sync
from celu.errors import ConfigError

QUOTA_FILE = "quota.bin"
_MAGIC = b"celuquo1"
_HEADER = struct.Struct("<8sqqq32s")  # magic, day, carried, rows, digest of the commitments
_DAY_S = 86_400


class Quota:
    """The limits of one guest. Days are those of UTC; one that has begun never ends early.

    `identity` names what the row numbers belong to, such as an alignment. Raises ConfigError if
    the file cannot be written, or is damaged: a lost count would allow more rows.
    """

    def __init__(
        self,
        folder: Path,
        num_rows: int,
        identity: str,
        *,
        rows_per_second: int | None = None,
        distinct_rows_per_day: int | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = folder / QUOTA_FILE
        self._num_rows = num_rows
        self._digest = hashlib.sha256(f"{num_rows} {identity}".encode()).digest()
        self._rate = rows_per_second
        self._per_day = distinct_rows_per_day
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._credit = float(rows_per_second or 0)
        self._credit_at = monotonic()
        self._day = self._carried = self._used = 0
        self._bits: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        if distinct_rows_per_day is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._open()
            except OSError as error:
                raise ConfigError(
                    f"{self._path}: cannot be written: {error.strerror}; "
                    "serve.distinct_rows_per_day needs it"
                ) from error

    @property
    def distinct_today(self) -> int:
        """The number of different rows answered today."""
        return self._carried + self._used

    def spend(self, rows: Sequence[int]) -> str | None:
        """Count some rows as answered. None, or the name of the limit: then nothing is counted."""
        with self._lock:
            if self._rate is not None and not self._has_credit():
                return "rows_per_second"
            if self._per_day is not None and not self._mark(rows):
                return "distinct_rows_per_day"
            self._credit -= len(rows)
            return None

    def _has_credit(self) -> bool:
        """A token bucket of one second, which an ask may overdraw: the next ones then wait."""
        assert self._rate is not None
        now = self._monotonic()
        self._credit = min(float(self._rate), self._credit + (now - self._credit_at) * self._rate)
        self._credit_at = now
        return self._credit > 0

    def _mark(self, asked: Sequence[int]) -> bool:
        assert self._per_day is not None
        if self._today() > self._day:
            self._open()
        rows = np.unique(np.array(asked, np.int64))
        masks = (1 << (rows & 7)).astype(np.uint8)
        new = int(((self._bits[rows >> 3] & masks) == 0).sum())
        if self.distinct_today + new > self._per_day:
            return False
        np.bitwise_or.at(self._bits, rows >> 3, masks)
        self._used += new
        return True

    def _today(self) -> int:
        return int(self._clock() // _DAY_S)

    def _open(self) -> None:
        """Map the file of today; write a new one for a new day or other rows."""
        found = self._read_header()
        today = self._today()
        if found is not None:
            day, carried, rows, digest = found
            today = max(today, day)  # a clock that was set back does not start a day again
            if day == today and digest == self._digest:
                return self._map(day, carried)
            self._write(today, carried + self._count(rows) if day == today else 0)
        else:
            self._write(today, 0)
        return None

    def _read_header(self) -> tuple[int, int, int, bytes] | None:
        try:
            with self._path.open("rb") as file:
                data, size = file.read(_HEADER.size), os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None
        if len(data) == _HEADER.size:
            magic, day, carried, rows, digest = _HEADER.unpack(data)
            expected = _HEADER.size + _num_bytes(rows) if 0 <= rows < 2**40 else -1
            if magic == _MAGIC and carried >= 0 and day >= 0 and size == expected:
                return day, carried, rows, digest
        raise ConfigError(
            f"{self._path}: expected the rows answered today, got a damaged file; delete it to "
            "start counting from zero"
        )

    def _count(self, rows: int) -> int:
        bits = np.fromfile(self._path, np.uint8, _num_bytes(rows), offset=_HEADER.size)
        return int(np.unpackbits(bits).sum())

    def _write(self, day: int, carried: int) -> None:
        partial = self._path.with_name(f".{QUOTA_FILE}.partial")
        with partial.open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, day, carried, self._num_rows, self._digest))
            file.truncate(_HEADER.size + _num_bytes(self._num_rows))
        sync(partial)
        partial.rename(self._path)
        sync(self._path.parent)
        self._map(day, carried)

    def _map(self, day: int, carried: int) -> None:
        with self._path.open("r+b") as file:
            mapped: Any = mmap.mmap(file.fileno(), 0)
        self._bits = np.frombuffer(mapped, np.uint8, offset=_HEADER.size)
        self._day, self._carried = day, carried
        self._used = int(np.unpackbits(self._bits).sum())


def _num_bytes(rows: int) -> int:
    return max(1, -(-rows // 8))
