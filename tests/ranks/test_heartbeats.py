"""Ranks notice one that is silent, and a store that does not answer."""

from __future__ import annotations

import queue
import threading
from collections import Counter

import pytest

from celu.ranks.heartbeats import Heartbeats

LOST_S = 0.4
TIMEOUT_S = 60.0  # a passing test never gets near it


class MemoryStore:
    """The part of a store that heartbeats use; it may stop to answer, or be gone."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.answers = threading.Event()
        self.answers.set()
        self.is_gone = False

    def add(self, key: str, amount: int) -> int:
        self.answers.wait(TIMEOUT_S)
        if self.is_gone:
            raise RuntimeError("connection reset")
        self.counts[key] += amount
        return self.counts[key]


class Ranks:
    """Some ranks, and whom each of them calls silent."""

    def __init__(self, size: int) -> None:
        self.store = MemoryStore()
        self.silent: queue.Queue[tuple[int, int | None]] = queue.Queue()
        self.all = [
            Heartbeats(self.store, rank, size, LOST_S, self.noticed_by(rank))
            for rank in range(size)
        ]

    def noticed_by(self, rank: int):  # type: ignore[no-untyped-def]
        return lambda silent: self.silent.put((rank, silent))

    def stop(self) -> None:
        self.store.answers.set()
        for one in self.all:
            one.stop()


@pytest.mark.parametrize("silent", [0, 2])
def test_the_first_notices_any_and_the_others_the_first(silent: int) -> None:
    ranks = Ranks(3)
    with pytest.raises(queue.Empty):
        ranks.silent.get(timeout=3 * LOST_S)
    ranks.all[silent].stop()
    noticed = {ranks.silent.get(timeout=TIMEOUT_S)}
    if silent == 0:
        noticed.add(ranks.silent.get(timeout=TIMEOUT_S))
    assert noticed == ({(1, 0), (2, 0)} if silent == 0 else {(0, 2)})
    ranks.stop()


def test_a_store_that_does_not_answer_is_noticed_and_one_that_is_gone_is_not_needed() -> None:
    ranks = Ranks(2)
    ranks.store.answers.clear()
    noticed = {ranks.silent.get(timeout=TIMEOUT_S) for _ in range(2)}
    assert noticed == {(0, None), (1, None)}
    ranks.stop()
    ranks = Ranks(2)
    ranks.store.is_gone = True
    with pytest.raises(queue.Empty):
        ranks.silent.get(timeout=3 * LOST_S)
    ranks.stop()
