"""Rows as tensors, and batches of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from celu.data.dataset import Batch, Dataset
from celu.data.tags import make_tags
from celu.errors import DataError

TAGS = make_tags(["a", "b", "c", "d"], 1)


def table(tags: np.ndarray | None = TAGS) -> Dataset:
    ids = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]], dtype=torch.int32)
    numbers = torch.tensor([[0.5], [1.5], [2.5], [3.5]])
    return Dataset({"ids": ids, "numbers": numbers}, torch.arange(4.0), {"ids": (9, 9)}, tags)


def test_a_batch_holds_the_rows_asked_for_in_their_order_and_ids_as_int64() -> None:
    batch = table().take(torch.tensor([2, 0]))
    assert batch.inputs["ids"].tolist() == [[5, 6], [1, 2]]
    assert batch.inputs["ids"].dtype == torch.int64
    assert batch.inputs["numbers"].tolist() == [[2.5], [0.5]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [2, 0]
    assert np.array_equal(batch.tags, TAGS[[2, 0]])
    part = table().take(slice(1, 3))
    assert part.inputs["ids"].tolist() == [[3, 4], [5, 6]]
    assert np.array_equal(part.tags, TAGS[1:3])


def test_parts_join_to_the_batch_of_all_their_rows() -> None:
    joined = Batch.join([table().take(slice(2, 4)), table().take(torch.tensor([0]))])
    whole = table().take(torch.tensor([2, 3, 0]))
    assert joined.inputs["ids"].equal(whole.inputs["ids"])
    assert joined.labels is not None and whole.labels is not None
    assert joined.labels.equal(whole.labels)
    assert joined.row_digest == whole.row_digest


@pytest.mark.parametrize("tags", [TAGS, None], ids=["by tag", "by number"])
def test_the_check_tells_a_row_shifted_swapped_or_replaced(tags: np.ndarray | None) -> None:
    checks = [
        table(tags).take(torch.tensor(rows)).row_digest
        for rows in ([0, 1], [1, 2], [1, 0], [0, 3], [0], [0, 1, 2])
    ]
    assert len(set(checks)) == len(checks)
    assert checks[0] == table(tags).take(slice(0, 2)).row_digest


def test_the_commitment_names_rows_in_their_order() -> None:
    names = {table(tags).commitment for tags in (TAGS, TAGS[::-1], TAGS[[0, 1, 3, 2]], None)}
    assert len(names) == 4


def test_blocks_are_laid_end_to_end_and_ordered() -> None:
    window = table().gather_blocks([(2, 4), (0, 1)], np.array([1, 2, 0]))
    assert window.inputs["numbers"].tolist() == [[3.5], [0.5], [2.5]]
    assert window.tags is not None
    assert np.array_equal(window.tags, TAGS[[3, 0, 2]])


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="one number of rows"):
        Dataset({"a": torch.zeros(3, 1), "b": torch.zeros(2, 1)})
    with pytest.raises(DataError, match="'tags': 4"):
        Dataset({"a": torch.zeros(3, 1)}, tags=TAGS)
