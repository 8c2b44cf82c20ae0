"""A cache of Z at the guest, by model, host and row: bounded in bytes and in time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
Key = tuple[str, str, bytes]  # model, host, row
_OVERHEAD = 400  # bytes of an entry besides its numbers


class ZCache:
    """The rows of Z used last, for at most `lifetime_s` each. Safe to use from many threads."""

    def __init__(
        self, max_bytes: int, lifetime_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, tuple[float, Row]] = OrderedDict()
        self._num_bytes = 0
        self.hits = self.misses = 0

    @property
    def is_off(self) -> bool:
        """Whether it holds nothing, ever."""
        return self._max_bytes == 0

    @property
    def num_bytes(self) -> int:
        """The size of all entries."""
        return self._num_bytes

    def get(self, key: Key) -> Row | None:
        """The Z of a row, None if it is not there or too old."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry[0] < self._clock():
                self.misses += 1
                if entry is not None:
                    self._remove(key)
                return None
            self._entries.move_to_end(key)
            self.hits += 1
            return entry[1]

    def put(self, key: Key, z_D: Row) -> None:
        """Add the Z of a row, and remove those used longest ago if there is no room."""
        z_D = np.array(z_D, np.float32)  # a copy: a view would hold the whole answer in memory
        size = z_D.nbytes + _OVERHEAD
        if size > self._max_bytes:
            return
        with self._lock:
            if key in self._entries:
                self._remove(key)
            self._entries[key] = self._clock() + self._lifetime_s, z_D
            self._num_bytes += size
            while self._num_bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def _remove(self, key: Key) -> None:
        _, z_D = self._entries.pop(key)
        self._num_bytes -= z_D.nbytes + _OVERHEAD
