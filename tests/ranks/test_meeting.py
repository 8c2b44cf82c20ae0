"""Ranks of one attempt find each other, whatever an earlier attempt left in the store."""

from __future__ import annotations

import threading

import pytest

from celu.errors import RankLost
from celu.ranks.meeting import meet

TIMEOUT_S = 60.0  # a passing test never gets near it


class MemoryStore:
    """The part of a store that `meet` uses."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


def meet_all(store: MemoryStore, order: list[int]) -> set[str]:
    """The names that ranks get which start in this order."""
    names: list[str] = []
    threads = [
        threading.Thread(target=lambda r=rank: names.append(meet(store, r, len(order), TIMEOUT_S)))
        for rank in order
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert len(names) == len(order)
    return set(names)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_the_ranks_of_each_attempt_agree_on_a_name_of_its_own(order: list[int]) -> None:
    store = MemoryStore()
    attempts = [meet_all(store, order) for _ in range(3)]
    assert all(len(names) == 1 for names in attempts)
    assert len(set.union(*attempts)) == 3


def test_a_rank_that_was_there_in_an_earlier_attempt_only_is_missed() -> None:
    store = MemoryStore()
    meet_all(store, [0, 1])
    with pytest.raises(RankLost, match="rank 0: the other ranks"):
        meet(store, 0, 2, timeout_s=0.2)
    with pytest.raises(RankLost, match="rank 1: the other ranks"):
        meet(store, 1, 2, timeout_s=0.2)
