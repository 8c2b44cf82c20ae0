"""Batches in the agreed order: the same rows whether gathered ahead, by blocks or by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celu.config.job import Order
from celu.data import batch_loader as feed_module
from celu.data.batch_loader import BatchLoader
from celu.data.dataset import Dataset
from celu.data.order import BatchOrder
from celu.data.tags import make_tags

BLOCKS = Order(shuffle="blocks", block_rows=8, window_blocks=3)
CPU = torch.device("cpu")


@pytest.fixture(params=[0, 2**40], ids=["thread", "in place"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered by a thread, or then and there."""
    monkeypatch.setattr(feed_module, "_FEW_BYTES", request.param)


def table(num_rows: int) -> Dataset:
    rows = torch.arange(num_rows)
    tags = make_tags(map(str, range(num_rows)), 1)
    ids = torch.stack([rows, rows * 2], dim=1).int()
    return Dataset({"ids": ids}, rows.float(), {"ids": (num_rows, 2 * num_rows)}, tags)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("order", [Order(), BLOCKS], ids=["rows", "blocks"])
@pytest.mark.parametrize("rounds", [range(40), [0, 3, 4, 9, 20, 21], [7, 7, 8]])
def test_a_batch_is_a_function_of_its_round(order: Order, rounds: list[int]) -> None:
    rows = table(100)
    batches = BatchOrder(5, 100, 16, order)
    feed = BatchLoader(rows, BatchOrder(5, 100, 16, order), CPU)
    for round_ in rounds:
        batch, expected = feed.batch(round_), rows.take(batches.rows(round_))
        assert batch.inputs["ids"].equal(expected.inputs["ids"])
        assert batch.labels is not None and expected.labels is not None
        assert batch.labels.equal(expected.labels)
        assert batch.row_digest == expected.row_digest
    feed.close()


@pytest.mark.usefixtures("either_way")
def test_an_error_while_gathering_reaches_the_one_who_asks() -> None:
    feed = BatchLoader(
        table(64), BatchOrder(1, 128, 16), CPU
    )  # an order over rows that are not there
    with pytest.raises(IndexError):
        for round_ in range(8):
            feed.batch(round_)
    feed.close()


@pytest.mark.usefixtures("either_way")
def test_by_blocks_only_a_window_or_two_are_in_memory() -> None:
    feed = BatchLoader(table(10_000), BatchOrder(1, 10_000, 16, BLOCKS), CPU)
    for round_ in range(600):
        feed.batch(round_)
        held = sum(window.num_rows for window in feed._windows.values())
        assert held <= 3 * 24
    feed.close()


@pytest.mark.usefixtures("either_way")
def test_a_batch_does_not_keep_its_window_in_memory() -> None:
    order = Order(shuffle="blocks", block_rows=64, window_blocks=8)
    feed = BatchLoader(table(1024), BatchOrder(1, 1024, 16, order), CPU)
    batch = feed.batch(0)
    feed.close()
    assert batch.labels is not None
    for tensor in (*batch.inputs.values(), batch.labels):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


@given(
    st.integers(0, 2**40),
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(1, 60),
    st.integers(1, 10),
)
def test_by_blocks_every_row_comes_once_an_epoch_and_from_its_window(
    seed: int, num_rows: int, batch_size: int, block_rows: int, window_blocks: int
) -> None:
    order = Order(shuffle="blocks", block_rows=block_rows, window_blocks=window_blocks)
    batches = BatchOrder(seed, num_rows, batch_size, order)
    for epoch in range(2 if batches.rounds_per_epoch else 0):
        rounds = range(batches.rounds_per_epoch)
        rows = [r for i in rounds for r in batches.rows(epoch * len(rounds) + i).tolist()]
        assert len(rows) == len(set(rows)) == len(rounds) * batch_size
        assert set(rows) <= set(range(num_rows))
        for i in rounds:
            for key, cut in batches.cuts(epoch * len(rounds) + i):
                window = batches.window(key)
                assert len(window.rows[cut]) == cut.stop - cut.start > 0
                assert len(window.blocks) <= window_blocks
                assert sorted(window.order.tolist()) == list(range(len(window.order)))


def test_the_order_by_blocks_is_pinned() -> None:
    # Parties on different releases must agree: a change here is a change of the protocol.
    order = BatchOrder(1, 12, 6, Order(shuffle="blocks", block_rows=2, window_blocks=3))
    assert [order.rows(r).tolist() for r in range(3)] == [
        [9, 5, 10, 11, 4, 8],
        [6, 7, 2, 1, 3, 0],
        [0, 11, 6, 1, 10, 7],
    ]


def test_by_blocks_mixes_blocks_anew_each_epoch() -> None:
    order = BatchOrder(1, 6400, 64, Order(shuffle="blocks", block_rows=64, window_blocks=10))
    companions = []
    for epoch in range(20):
        for number in range(10):
            starts = {start for start, _ in order.window((epoch, number)).blocks}
            if 0 in starts:
                companions.append(starts - {0})
    assert len(set.union(*companions)) > 75, "in 20 epochs a block meets most of the 99 others"
    # Within a window rows are shuffled: a batch of 64 holds rows of about all its ten blocks.
    spread = [len(np.unique(order.rows(r).numpy() // 64)) for r in range(100)]
    assert min(spread) >= 7
