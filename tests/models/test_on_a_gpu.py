"""Embeddings on a GPU: the rows of torch's operation, and its gradient."""

from __future__ import annotations

import copy

import pytest
import torch

from celu.models.tower import FieldEmbedding

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("dim", [1, 12, 128])
@pytest.mark.parametrize("sizes", [(5, 7, 3), (1000,), (20_000,) * 26], ids=str)
def test_a_gpu_finds_the_rows_of_a_cpu_and_their_gradient(sizes: tuple[int, ...], dim: int) -> None:
    here = FieldEmbedding(sizes, dim, 0.1)
    there = copy.deepcopy(here).cuda()
    ids = torch.stack([torch.randint(size, (300,)) for size in sizes], dim=1)
    found = there(ids.cuda())
    expected = here(ids)
    assert found.cpu().equal(expected)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    found.backward(gradient.cuda())
    one, other = there.table.weight.grad, here.table.weight.grad
    assert one is not None and other is not None and one.is_sparse
    assert one.cpu()._indices().equal(other._indices())
    assert one.cpu()._values().equal(other._values())


def test_ids_that_are_not_adjacent_in_memory_are_found_too() -> None:
    embedding = FieldEmbedding((9, 9), 8, 0.1).cuda()
    ids = torch.randint(9, (2, 50)).cuda().t()
    assert embedding(ids).equal(embedding(ids.contiguous()))


def test_an_id_outside_of_the_table_is_nan_and_touches_no_other_memory() -> None:
    embedding = FieldEmbedding((5,), 8, 0.1).cuda()
    found = embedding(torch.tensor([[1], [5], [-1]], device="cuda"))
    assert found.isnan().any(dim=1).tolist() == [False, True, True]
