"""Kill parties at random points: `python -m tests.faults --kills 60 --seed 1` in a checkout."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

from faults.kills import kill_many
from faults.parties import open_environment


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        open_environment(Path(name) / "environment") as environment,
    ):
        baseline = environment.run_without_faults(Path(name) / "baseline")
        report = kill_many(
            environment,
            Path(name),
            baseline,
            kills=options.kills,
            seed=options.seed,
            on_progress=lambda line: print(line, file=sys.stderr),
        )
        for line in report.lines():
            print(line)


if __name__ == "__main__":
    main()
