"""Gradients of slices are added in the order of the slices."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celu.ranks.gradients import sum_in_order, take_gradients


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape))


def test_dense_gradients_are_added_in_order() -> None:
    parts = [torch.tensor([1e8]), torch.tensor([1.0]), torch.tensor([-1e8])]
    (total,) = sum_in_order([[part] for part in parts])
    assert total is not None
    assert total.item() == 0.0  # 1 is lost beside 1e8; in another order it would not be
    assert parts[0].item() == 1e8  # and the gradients of the slices are as they were


def test_sparse_gradients_are_added_by_row_in_order() -> None:
    def sparse(rows: list[int], values: list[float]) -> Tensor:
        return torch.sparse_coo_tensor([rows], [[v] for v in values], (5, 1)).coalesce()

    parts = [sparse([1, 3], [1e8, 2.0]), sparse([3, 4], [3.0, 4.0]), sparse([1], [1.0])]
    (total,) = sum_in_order([[part] for part in parts])
    assert total is not None
    assert total.is_coalesced()
    assert total._indices().tolist() == [[1, 3, 4]]
    assert total._values().tolist() == [[1e8], [5.0], [4.0]]


def test_a_slice_without_a_gradient_counts_as_zeros() -> None:
    (total, none) = sum_in_order([[None, None], [torch.tensor([2.0]), None]])
    assert total is not None
    assert total.tolist() == [2.0]
    assert none is None


def test_taking_the_gradients_sums_a_sparse_one_by_row_and_leaves_none() -> None:
    table, weight = nn.Embedding(4, 2, sparse=True), parameter(2)
    (table(torch.tensor([1, 1, 2])) * weight).sum().backward()
    gradient, dense = take_gradients([table.weight, weight])
    assert gradient is not None and gradient.is_coalesced() and dense is not None
    assert gradient._indices().tolist() == [[1, 2]]
    assert table.weight.grad is None and weight.grad is None
