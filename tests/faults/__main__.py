"""Kill parties at random points: `python -m tests.faults --kills 60 --seed 1` in a checkout."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

from faults.kills import kill_many
from faults.parties import ground_at


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ground_at(Path(name) / "ground") as ground:
        whole = ground.undisturbed(Path(name) / "whole")
        report = kill_many(
            ground,
            Path(name),
            whole,
            kills=given.kills,
            seed=given.seed,
            on_progress=lambda line: print(line, file=sys.stderr),
        )
        for line in report.lines():
            print(line)


if __name__ == "__main__":
    main()
