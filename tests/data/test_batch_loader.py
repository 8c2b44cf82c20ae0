"""Batches by round: the same rows with prefetching, by blocks and gathered directly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celu.config.job import Order
from celu.data import batch_loader as loader_module
from celu.data.batch_loader import BatchLoader
from celu.data.dataset import Dataset
from celu.data.order import BatchOrder, epoch_order
from celu.data.tags import make_tags

BLOCKS = Order(shuffle="blocks", block_rows=8, window_blocks=3)
CPU = torch.device("cpu")


@pytest.fixture(params=[0, 2**40], ids=["prefetched", "calling thread"])
def with_and_without_thread(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are prefetched by a thread, or gathered in the calling thread."""
    monkeypatch.setattr(loader_module, "_SMALL_BYTES", request.param)


@pytest.fixture
def four_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of four rounds are gathered together, as on a GPU."""
    monkeypatch.setattr(loader_module, "_SMALL_BYTES", 0)
    monkeypatch.setattr(loader_module, "_rounds_at_once", lambda *args: 4)


def small_dataset(num_rows: int) -> Dataset:
    rows = torch.arange(num_rows)
    tags = make_tags(map(str, range(num_rows)), 1)
    ids = torch.stack([rows, rows * 2], dim=1).int()
    return Dataset({"ids": ids}, rows.float(), {"ids": (num_rows, 2 * num_rows)}, tags)


@pytest.mark.usefixtures("with_and_without_thread")
@pytest.mark.parametrize("order", [Order(), BLOCKS], ids=["rows", "blocks"])
@pytest.mark.parametrize("rounds", [range(40), [0, 3, 4, 9, 20, 21], [7, 7, 8]])
def test_a_batch_is_a_function_of_its_round(order: Order, rounds: list[int]) -> None:
    dataset = small_dataset(100)
    batches = BatchOrder(5, 100, 16, order)
    loader = BatchLoader(dataset, BatchOrder(5, 100, 16, order), CPU)
    for round_ in rounds:
        batch, expected = loader.batch(round_), dataset.take(batches.rows(round_))
        assert batch.inputs["ids"].equal(expected.inputs["ids"])
        assert batch.labels is not None and expected.labels is not None
        assert batch.labels.equal(expected.labels)
        assert batch.row_digest == expected.row_digest
    loader.close()


@pytest.mark.usefixtures("four_at_once")
@pytest.mark.parametrize("rounds", [range(40), [2, 3, 4, 9, 20, 21], [7, 7, 8]])
def test_a_batch_is_a_function_of_its_round_where_several_are_gathered_at_once(
    rounds: list[int],
) -> None:
    test_a_batch_is_a_function_of_its_round(Order(), rounds)


@pytest.mark.usefixtures("four_at_once")
def test_the_next_epoch_is_ordered_before_it_is_needed() -> None:
    epoch_order.cache_clear()
    loader = BatchLoader(small_dataset(320), BatchOrder(2**31, 320, 16), CPU)
    loader.batch(12)  # of 20; the next four are prefetched
    loader.close()
    before = epoch_order.cache_info()
    BatchOrder(2**31, 320, 16).rows(20)
    assert epoch_order.cache_info().hits == before.hits + 1


@pytest.mark.usefixtures("with_and_without_thread")
def test_an_error_in_the_thread_is_raised_to_the_caller() -> None:
    loader = BatchLoader(
        small_dataset(64), BatchOrder(1, 128, 16), CPU
    )  # the order has more rows than the dataset
    with pytest.raises(IndexError):
        for round_ in range(8):
            loader.batch(round_)
    loader.close()


@pytest.mark.usefixtures("with_and_without_thread")
def test_a_block_shuffle_holds_at_most_three_windows_in_memory() -> None:
    loader = BatchLoader(small_dataset(10_000), BatchOrder(1, 10_000, 16, BLOCKS), CPU)
    for round_ in range(600):
        loader.batch(round_)
        held = sum(window.num_rows for window in loader._windows.values())
        assert held <= 3 * 24
    loader.close()


@pytest.mark.usefixtures("with_and_without_thread")
def test_a_batch_does_not_hold_its_window_in_memory() -> None:
    order = Order(shuffle="blocks", block_rows=64, window_blocks=8)
    loader = BatchLoader(small_dataset(1024), BatchOrder(1, 1024, 16, order), CPU)
    batch = loader.batch(0)
    loader.close()
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
def test_a_block_shuffle_uses_each_row_once_an_epoch_from_its_window(
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
            for key, part in batches.window_slices(epoch * len(rounds) + i):
                window = batches.window(key)
                assert len(window.rows[part]) == part.stop - part.start > 0
                assert len(window.blocks) <= window_blocks
                assert sorted(window.order.tolist()) == list(range(len(window.order)))


def test_the_block_shuffle_is_pinned() -> None:
    # Parties on different releases must agree: a change here is a change of the protocol.
    order = BatchOrder(1, 12, 6, Order(shuffle="blocks", block_rows=2, window_blocks=3))
    assert [order.rows(r).tolist() for r in range(3)] == [
        [9, 5, 10, 11, 4, 8],
        [6, 7, 2, 1, 3, 0],
        [0, 11, 6, 1, 10, 7],
    ]


def test_a_block_shuffle_mixes_other_blocks_in_each_epoch() -> None:
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
