"""The numbers in an observer's reports."""

from __future__ import annotations

import pytest
import torch

from celu.engine.observer import quantiles
from celu.events import SIMILARITY_QUANTILES


@pytest.mark.parametrize("count", [1, 2, 3, 10, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantiles_equal_those_of_torch(count: int, dtype: torch.dtype) -> None:
    numbers = torch.rand(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    expected = torch.quantile(numbers.float(), torch.tensor(SIMILARITY_QUANTILES))
    torch.testing.assert_close(torch.tensor(quantiles(numbers)), expected)
