"""Fuzz with many frames: `python -m tests.fuzz --frames 1000000 --seed 1`, in a checkout."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

from fuzz.engine import fuzz
from fuzz.targets import open_targets


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started, due = time.monotonic(), 50_000

    def print_progress(done: int) -> None:
        nonlocal due
        if done >= due:
            due += 50_000
            print(f"{done} frames, {time.monotonic() - started:.0f} s", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder, open_targets(Path(folder)) as targets:
        for line in fuzz(targets, options.frames, options.seed, print_progress).lines():
            print(line)


if __name__ == "__main__":
    main()
