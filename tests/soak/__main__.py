"""Train for hours over a link with outages, and check that no process grows.

`python -m tests.soak --minutes 120 --out FILE` in a checkout. Exits with 1 if memory, threads, open
files or checkpoints grew, or a party failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

from soak.report import lines, to_json
from soak.run import Plan, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--outages", type=int, help="how many; by default one every two minutes")
    parser.add_argument("--carrier", choices=["grpc", "websocket"], default="grpc")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args()
    plan = Plan.of(options.minutes, options.outages, options.carrier, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        report = soak(plan, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    if options.out is not None:
        command = " ".join(["python -m tests.soak", *sys.argv[1:]])
        text = json.dumps(to_json(report, command)) + "\n"
        options.out.write_text(text, encoding="utf-8")
    for line in lines(report):
        print(line)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
