"""Record what this release computes and writes, for `test_compatibility.py` of later ones.

    .venv/bin/python tests/golden/record.py

Run it only where a change of the bits or of a file format is meant, and say so in the CHANGELOG.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import torch
from torch import Tensor

HERE = Path(__file__).parent
INTERRUPTED = ("depth 8", "changing")  # cases whose checkpoints of an earlier release are kept
sys.path.insert(0, str(HERE.parent))


def platform_key() -> str:
    """What the bits of a CPU run depend on besides the contract: this machine's arithmetic."""
    random = torch.Generator().manual_seed(1)
    x, w = torch.randn(32, 24, generator=random), torch.randn(24, 8, generator=random)
    z = torch.nn.functional.relu(x @ w)
    probe = torch.cat([(z @ w.T).flatten(), z.exp().log1p().flatten(), z.sum(0).rsqrt()])
    return f"torch {torch.__version__.split('+')[0]}, {digest({'probe': probe})[:12]}"


def digest(weights: dict[str, Tensor]) -> str:
    """SHA-256 over names and bytes, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(weights):
        total.update(name.encode())
        total.update(weights[name].contiguous().numpy().tobytes())
    return total.hexdigest()


def norms(weights: dict[str, Tensor]) -> dict[str, float]:
    """The length of each tensor: what other CPUs agree on, but for rounding."""
    return {name: float(tensor.double().norm()) for name, tensor in sorted(weights.items())}


def main() -> None:
    """Write trajectories.json and the interrupted runs."""
    from federation import train_in_memory
    from slow.engine.test_resume import CASES, attempt

    file = HERE / "trajectories.json"
    recorded = json.loads(file.read_text()) if file.exists() else {}
    for name, build in CASES.items():
        weights = train_in_memory(build())
        entry = recorded.setdefault(name, {"sha256": {}})
        entry["sha256"][platform_key()] = digest(weights)
        entry["norms"] = norms(weights)
    file.write_text(json.dumps(recorded, indent=1) + "\n")
    for name in INTERRUPTED:
        folder = HERE / "interrupted" / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        assert attempt(CASES[name](), folder, turns=8)[0] is None


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
