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


def differing(ranks: dict[str, Tensor], slices: dict[str, Tensor]) -> list[str]:
    """What ranks with whole or with sharded tables end with in other bits than slices."""
    names = [name.removeprefix("whole: ") for name in slices]
    assert {f"{tables}: {name}" for tables in ("whole", "sharded") for name in names} == set(ranks)
    return [
        f"{tables}: {name}"
        for tables in ("whole", "sharded")
        for name in names
        if not torch.equal(ranks[f"{tables}: {name}"], slices[f"whole: {name}"])
    ]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_a_gpu)])
def test_ranks_have_the_bits_of_slices_and_not_those_of_whole_batches(
    tmp_path: Path, device: str
) -> None:
    slices, ranks = work(tmp_path, device, slices=2), work(tmp_path, device, ranks=2)
    assert differing(ranks, slices) == []
    whole = work(tmp_path, device)
    assert differing(ranks, whole)
    for name in whole:
        if "adagrad" in name:  # Adam's first updates are as large for a gradient of rounding errors
            torch.testing.assert_close(slices[name], whole[name], rtol=1e-3, atol=1e-5)


def test_four_ranks_have_the_bits_of_four_slices(tmp_path: Path) -> None:
    ranks, slices = work(tmp_path, "cpu", ranks=4), work(tmp_path, "cpu", slices=4)
    assert differing(ranks, slices) == []
