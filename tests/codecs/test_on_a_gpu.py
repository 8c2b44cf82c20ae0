"""The quantizers on a GPU: the payload of a CPU's, within rounding, and the same bytes twice."""

from __future__ import annotations

import pytest
import torch

from celu.codecs.quantizers import RotatedQuantizer, RowQuantizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SHAPES = [(37, 64), (5, 100), (300, 256), (2, 7), (1, 1), (64, 1024)]
QUANTIZERS = [RowQuantizer(8), RotatedQuantizer(4), RotatedQuantizer(2)]


def batch(rows: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    x_BD = torch.randn(rows, width, generator=generator)
    x_BD[0] = 1.5  # all equal: a range of 0
    return x_BD * 3 + torch.linspace(-5, 5, width)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: f"{type(q).__name__}-{q._bits}")
def test_a_gpu_encodes_and_decodes_like_a_cpu(
    quantizer: RowQuantizer, shape: tuple[int, int]
) -> None:
    x_BD = batch(*shape)
    on_cpu, on_gpu = quantizer.encode(x_BD, None), quantizer.encode(x_BD.cuda(), None)
    assert on_gpu.is_cuda and on_gpu.shape == on_cpu.shape
    # The bytes may differ: a mean or a range that is rounded differently, or a number halfway
    # between two levels. What is decoded differs by a level at most.
    differences = (quantizer.decode(on_gpu, *shape).cpu() - quantizer.decode(on_cpu, *shape)).abs()
    level_B1 = (x_BD.amax(dim=1, keepdim=True) - x_BD.amin(dim=1, keepdim=True)).clamp(min=1e-3)
    assert (differences <= 1.01 * level_B1).all() and differences.mean() < 0.05 * level_B1.mean()
    for payload in (on_cpu, on_gpu.cpu()):
        decoded = quantizer.decode(payload, *shape)
        there = quantizer.decode(payload.cuda(), *shape)
        torch.testing.assert_close(there.cpu(), decoded, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: f"{type(q).__name__}-{q._bits}")
def test_rounding_on_a_gpu_is_unbiased_and_repeats_with_its_seed(quantizer: RowQuantizer) -> None:
    x_BD = batch(16, 64).cuda()

    def encoded(seed: int) -> torch.Tensor:
        return quantizer.encode(x_BD, torch.Generator("cuda").manual_seed(seed))

    assert encoded(2**62 + 5).equal(encoded(2**62 + 5))
    assert not encoded(1).equal(encoded(2))
    decoded = torch.stack([quantizer.decode(encoded(seed), 16, 64) for seed in range(400)])
    spread = decoded.std(dim=0) / 400**0.5
    # A number close to a level may never have been rounded to the other one.
    level = float(decoded.std(dim=0).max())
    assert ((decoded.mean(dim=0) - x_BD).abs() <= 5 * spread + 0.15 * level).all()
    assert float((decoded.mean(dim=0) - x_BD).abs().mean()) < 0.1 * level
