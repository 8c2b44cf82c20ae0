"""How far rows have turned and moved, on a GPU: the numbers of a CPU, within rounding."""

from __future__ import annotations

import pytest
import torch

from celu.workset.weighting import (
    CompensatedWeighting,
    CosineWeighting,
    StaleDerivatives,
    StaleLosses,
    Weights,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SHAPES = [(37, 64), (5, 100), (300, 256), (1, 1), (9, 8192), (4, 9000)]  # the last is too wide


def rows(shape: tuple[int, int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(shape[0])
    fresh_BD, stale_BD, dz_BD = (torch.randn(shape, generator=generator) for _ in range(3))
    stale_BD[0] = 0.0
    if len(fresh_BD) > 2:
        fresh_BD[1] *= 1e-17  # its square is far below float32's range
        stale_BD[2] = 3 * fresh_BD[2]
    return [fresh_BD, stale_BD, dz_BD * 1e-3]


def assert_close(there: Weights, here: Weights) -> None:
    for on_gpu, on_cpu in zip(there, here, strict=True):
        assert on_gpu.is_cuda
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_gpu_weighs_rows_like_a_cpu_and_the_same_way_twice(shape: tuple[int, int]) -> None:
    on_cpu = rows(shape)
    on_gpu = [tensor.cuda() for tensor in on_cpu]
    for weighting in (CompensatedWeighting(60.0), CosineWeighting(60.0)):
        there = weighting.weigh_derivatives(StaleDerivatives(*on_gpu, 0.5))
        assert_close(there, weighting.weigh_derivatives(StaleDerivatives(*on_cpu, 0.5)))
        again = weighting.weigh_derivatives(StaleDerivatives(*on_gpu, 0.5))
        assert all(one.equal(other) for one, other in zip(there, again, strict=True))
        losses = weighting.weigh_losses(StaleLosses(*on_gpu[:2]))
        assert_close(losses, weighting.weigh_losses(StaleLosses(*on_cpu[:2])))


def test_rows_that_are_not_contiguous_are_weighed_too() -> None:
    fresh_BD, stale_BD, dz_BD = (tensor.cuda().t() for tensor in rows((64, 32)))
    weighting = CompensatedWeighting(60.0)
    there = weighting.weigh_derivatives(StaleDerivatives(fresh_BD, stale_BD, dz_BD, 1.0))
    on_cpu = (fresh_BD.cpu(), stale_BD.cpu(), dz_BD.cpu())
    assert_close(there, weighting.weigh_derivatives(StaleDerivatives(*on_cpu, 1.0)))
