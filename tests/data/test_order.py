"""The order of rows: a function of the seed and the epoch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celu.data.order import BatchOrder, epoch_order


def test_the_order_is_pinned() -> None:
    # Parties on different releases must agree: a change here is a change of the protocol.
    assert epoch_order(1, 0, 10).tolist() == [9, 2, 4, 7, 5, 0, 8, 6, 3, 1]
    assert epoch_order(1, 1, 10).tolist() == [5, 6, 3, 0, 7, 2, 1, 4, 9, 8]
    assert epoch_order(2**70, 3, 5).tolist() == [4, 2, 3, 1, 0]


@given(st.integers(0, 2**64), st.integers(0, 1000), st.integers(1, 300))
def test_every_epoch_is_a_permutation_and_can_be_repeated(
    seed: int, epoch: int, num_rows: int
) -> None:
    order = epoch_order(seed, epoch, num_rows)
    assert sorted(order.tolist()) == list(range(num_rows))
    assert order.dtype == torch.int64
    assert torch.equal(order, epoch_order(seed, epoch, num_rows))


def test_the_order_differs_between_seeds_and_epochs() -> None:
    orders = [epoch_order(seed, epoch, 100) for seed in range(5) for epoch in range(5)]
    assert len({tuple(order.tolist()) for order in orders}) == 25


def test_batches_are_slices_of_an_epoch_and_the_incomplete_one_is_dropped() -> None:
    order = BatchOrder(seed=1, num_rows=11, batch_size=3)
    assert order.rounds_per_epoch == 3
    for epoch in range(3):
        batches = [order.rows(epoch * 3 + i).tolist() for i in range(3)]
        whole = epoch_order(1, epoch, 11).tolist()
        assert batches == [whole[0:3], whole[3:6], whole[6:9]]


def test_rows_dropped_in_one_epoch_occur_in_others() -> None:
    order = BatchOrder(seed=1, num_rows=11, batch_size=3)
    seen = {row for round_ in range(60) for row in order.rows(round_).tolist()}
    assert seen == set(range(11))


def test_no_row_occurs_twice_within_an_epoch() -> None:
    order = BatchOrder(seed=7, num_rows=64, batch_size=8)
    for epoch in range(4):
        rows = [row for i in range(8) for row in order.rows(epoch * 8 + i).tolist()]
        assert sorted(rows) == list(range(64))


@pytest.mark.parametrize("rounds", [[2, 3, 2, 3, 4], [9, 0, 9, 5], [0, 1, 2, 3, 4, 5, 4, 3, 2, 1]])
def test_rounds_may_be_requested_in_any_order_across_epochs(rounds: list[int]) -> None:
    together = BatchOrder(seed=4, num_rows=10, batch_size=3)
    for round_ in rounds:
        alone = BatchOrder(seed=4, num_rows=10, batch_size=3)
        assert torch.equal(together.rows(round_), alone.rows(round_))


def test_at_most_two_epochs_are_cached() -> None:
    order = BatchOrder(seed=4, num_rows=10, batch_size=5)
    for round_ in range(100):
        order.rows(round_)
    assert len(order._order_cache) <= 2


def test_a_batch_as_large_as_the_dataset_is_a_whole_epoch() -> None:
    order = BatchOrder(seed=4, num_rows=10, batch_size=10)
    assert order.rounds_per_epoch == 1
    assert sorted(order.rows(3).tolist()) == list(range(10))
