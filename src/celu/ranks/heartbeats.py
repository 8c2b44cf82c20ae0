"""Heartbeats of a party's ranks: they notice a rank that says nothing, although it is not gone.

A process that was stopped, and a machine that lost its power or network, close no connection. The
first rank still answers the peers' heartbeats then, so that to them it looks like a party that
computes, until their `deadline_s` has passed. Each rank counts up in the store that torchrun keeps;
the first one watches all counts, and the others that of the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

_BEATS = 8  # in the time after which a rank is lost
_MAX_INTERVAL_S = 5.0
_CLOSE_S = 5.0  # for the threads to end; a store that does not answer holds one of them


class Store(Protocol):
    """What this module needs of `torch.distributed.Store`."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return it. Raises RuntimeError if the store is gone."""
        ...


class Heartbeats:
    """Calls `on_silent` with a rank that was silent for `lost_s`, or with None for the store.

    It is called once, from a thread. A process that was stopped itself blames nobody: time counts
    in which it looked.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        lost_s: float,
        on_silent: Callable[[int | None], None],
    ) -> None:
        self._store, self._rank = store, rank
        self._lost_s = lost_s
        self._interval_s = min(lost_s / _BEATS, _MAX_INTERVAL_S)
        self._on_silent = on_silent
        self._silent_s = dict.fromkeys(range(1, size) if rank == 0 else [0], 0.0)
        self._counts: dict[int, int] = {}
        self._store_silent_s = 0.0
        self._stopped = threading.Event()
        self._threads = (
            threading.Thread(target=self._beat, name="celu-rank-beat", daemon=True),
            threading.Thread(target=self._watch, name="celu-rank-watch", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop both threads."""
        self._stopped.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_CLOSE_S)

    def _beat(self) -> None:
        """Count up, and look at the counts of others."""
        looked = time.monotonic()
        while not self._stopped.wait(self._interval_s):
            try:
                self._store.add(_key(self._rank), 1)
                found = {rank: self._store.add(_key(rank), 0) for rank in self._silent_s}
            except RuntimeError:  # torchrun has ended: the ranks go on without it
                self._stopped.set()
                return
            self._store_silent_s = 0.0
            looked, passed = self._since(looked)
            for rank, count in found.items():
                is_new = self._counts.get(rank) != count
                self._counts[rank] = count
                self._silent_s[rank] = 0.0 if is_new else self._silent_s[rank] + passed
                if self._silent_s[rank] > self._lost_s:
                    self._lose(rank)
                    return

    def _watch(self) -> None:
        """Look whether the store answers: its machine may be silent, too."""
        looked = time.monotonic()
        while not self._stopped.wait(self._interval_s):
            looked, passed = self._since(looked)
            self._store_silent_s += passed
            if self._store_silent_s > self._lost_s:
                self._lose(None)

    def _since(self, looked: float) -> tuple[float, float]:
        """The time, and how much of the time since `looked` counts."""
        now = time.monotonic()
        return now, min(now - looked, 2 * self._interval_s)

    def _lose(self, rank: int | None) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._on_silent(rank)


def _key(rank: int) -> str:
    return f"celu/beats/{rank}"
