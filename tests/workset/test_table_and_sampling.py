"""The workset table and round-robin sampling, without tensors."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celu.data.dataset import Batch
from celu.workset.sampling import RoundRobin
from celu.workset.table import Entry, WorksetTable

W_AND_R = {"W": st.integers(1, 12), "R": st.integers(1, 12)}


def entry(round_: int) -> Entry:
    return Entry(round_, Batch({}, None, np.zeros((0, 16), np.uint8)), (), ())


def drive(W: int, R: int, rounds: int) -> list[list[int | None]]:
    """The rounds of the batches sampled in each round, in a party's order of work."""
    table, sampling = WorksetTable(W, R), RoundRobin()
    sampled: list[list[int | None]] = []
    for round_ in range(rounds):
        steps = [table.sample(sampling) for _ in range(R - 1)]
        sampled.append([None if e is None else e.round for e in steps])
        table.insert(entry(round_))
        assert len(table) <= W
    return sampled


@given(**W_AND_R)
def test_in_steady_state_each_round_has_r_minus_1_local_steps(W: int, R: int) -> None:
    sampled = drive(W, R, rounds=5 * W + 10)
    assert all(None not in steps for steps in sampled[W:])
    assert all(len(steps) == R - 1 for steps in sampled)


@given(**W_AND_R)
def test_every_batch_is_used_exactly_r_times(W: int, R: int) -> None:
    rounds = 5 * W + 10
    uses = Counter(round_ for steps in drive(W, R, rounds) for round_ in steps)
    # The last W batches are still cached when the run ends.
    assert [1 + uses[round_] for round_ in range(rounds - W)] == [R] * (rounds - W)


@given(**W_AND_R)
def test_a_batch_is_never_sampled_twice_within_w_steps(W: int, R: int) -> None:
    steps = [round_ for sampled in drive(W, R, rounds=5 * W + 10) for round_ in sampled]
    for start in range(len(steps)):
        window = [round_ for round_ in steps[start : start + W] if round_ is not None]
        assert len(set(window)) == len(window)


@given(**W_AND_R)
def test_only_the_w_newest_batches_are_sampled(W: int, R: int) -> None:
    for round_, sampled in enumerate(drive(W, R, rounds=5 * W + 10)):
        assert all(round_ - W <= d < round_ for d in sampled if d is not None)


def test_w_3_r_3_matches_a_manual_schedule() -> None:
    assert drive(W=3, R=3, rounds=7) == [
        [None, None],
        [0, None],
        [1, 0],
        [2, 1],
        [3, 2],
        [4, 3],
        [5, 4],
    ]


def test_w_1_is_fedbcd_and_repeats_the_newest_batch() -> None:
    assert drive(W=1, R=4, rounds=4)[1:] == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]


def test_r_1_is_vanilla_and_caches_nothing() -> None:
    table = WorksetTable(W=5, R=1)
    table.insert(entry(0))
    assert len(table) == 0


def test_insertion_evicts_entries_that_are_w_rounds_old() -> None:
    table = WorksetTable(W=2, R=9)
    for round_ in range(4):
        table.insert(entry(round_))
    assert [e.round for e in table] == [2, 3]


def test_an_entry_is_evicted_after_r_uses() -> None:
    table = WorksetTable(W=1, R=3)
    table.insert(entry(0))
    assert table.sample(RoundRobin()) is not None
    assert len(table) == 1
    assert table.sample(RoundRobin()) is not None
    assert len(table) == 0
    assert table.sample(RoundRobin()) is None


@pytest.mark.parametrize("R", [2, 3, 5])
def test_bubbles_occur_in_the_first_w_rounds_only(R: int) -> None:
    sampled = drive(W=5, R=R, rounds=40)
    assert any(None in steps for steps in sampled[:5])
    assert not any(None in steps for steps in sampled[4:])
