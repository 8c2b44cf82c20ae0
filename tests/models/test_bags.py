"""Bags in the built-in towers: the mean or sum of the embeddings of a row's values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from celu.errors import ConfigError
from celu.models.built_in import BOTTOMS
from celu.models.numpy_forward import numpy_bottom
from celu.models.tower import FieldEmbedding, Pooling, Tower

BAGS = torch.tensor([[[1, 2, 0], [3, 0, 0]], [[0, 0, 0], [2, 2, 1]]])  # [B, columns, values]


def embedding(pooling: Pooling) -> FieldEmbedding:
    torch.manual_seed(0)
    return FieldEmbedding([3, 4], 5, 0.1, pooling)


@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_a_column_is_the_mean_or_sum_of_its_values_and_zero_without_any(pooling: Pooling) -> None:
    module = embedding(pooling)
    table = module.table.weight.detach()
    divide = (lambda x, n: x / n) if pooling == "mean" else (lambda x, n: x)
    expected = torch.stack(
        [
            torch.cat([divide(table[1] + table[2], 2), table[3 + 3]]),
            torch.cat([torch.zeros(5), divide(2 * table[3 + 2] + table[3 + 1], 3)]),
        ]
    )
    assert torch.allclose(module(BAGS), expected, atol=1e-6)


def test_lists_that_are_filled_up_with_more_zeros_are_the_same_bags() -> None:
    module = embedding("mean")
    longer = torch.cat([BAGS, torch.zeros(2, 2, 4, dtype=torch.long)], dim=2)
    assert torch.allclose(module(BAGS), module(longer), atol=1e-7)


def test_code_0_of_a_bag_gets_no_gradient() -> None:
    module = embedding("mean")
    module(BAGS).sum().backward()
    gradient = module.table.weight.grad
    assert gradient is not None
    dense = gradient.to_dense()
    assert not dense[0].any() and not dense[3].any() and dense[1].any()


@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_numpy_computes_the_same_z_from_bags(pooling: Pooling) -> None:
    torch.manual_seed(0)
    sizes = {"ids": [9], "bags": [3, 4]}
    columns = {"ids": 1, "bags": 2, "numbers": 2}
    module = Tower(6, columns, sizes, embedding_dim=5, hidden=[7], pooling=pooling)
    inputs = {"ids": torch.tensor([[8], [0]]), "bags": BAGS, "numbers": torch.randn(2, 2)}
    bottom = numpy_bottom(module)
    assert bottom is not None
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    z_BD = bottom({**arrays, "bags": arrays["bags"].astype(np.int32)})
    assert z_BD.dtype == np.float32
    assert z_BD == pytest.approx(module(**inputs).detach().numpy(), abs=1e-6)


def test_another_pooling_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"option pooling: .*'mean' or 'sum', got 'max'"):
        BOTTOMS["wdl"].check({"pooling": "max"}, "model.bottom")
