"""The ranks of torchrun have the bits of one process with as many slices: on a CPU, on one GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

WORKER = Path(__file__).parents[2] / "ranks_worker.py"
TIMEOUT_S = 600.0
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def work(folder: Path, device: str, ranks: int = 1, slices: int = 1) -> dict[str, Tensor]:
    out = folder / f"{ranks}-{slices}.safetensors"
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*(launcher if ranks > 1 else []), str(WORKER), device, str(out), str(slices)]
    subprocess.run([sys.executable, *command], check=True, timeout=TIMEOUT_S)
    return load_file(out)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_a_gpu)])
def test_ranks_have_the_bits_of_slices_and_not_those_of_whole_batches(
    tmp_path: Path, device: str
) -> None:
    slices, ranks = work(tmp_path, device, slices=2), work(tmp_path, device, ranks=2)
    assert [name for name in ranks if not torch.equal(ranks[name], slices[name])] == []
    whole = work(tmp_path, device)
    assert any(not torch.equal(ranks[name], whole[name]) for name in ranks)
    for name in ranks:
        torch.testing.assert_close(ranks[name], whole[name], rtol=1e-3, atol=1e-5)
