"""`scripts/bench checkpoint`: the cost of checkpoints, and whether they stall the link.

The same job with and without checkpoints, alternating: two processes over mutual TLS and an
emulated WAN, with large embedding tables at the host and rounds in flight, so that the link is the
bottleneck. In a run without checkpoints the first one is due after the last round. The checkpoint
at the end of every run is not timed.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.link_utilization import PARTIES, link_utilization
from bench.report import BenchResult, Log
from bench.step import BATCH, WIDTH, write_pair
from celu.config.link import find_link
from celu.config.templates import CRITEO, write_settings
from celu.testing import EventDict, free_port, run_parties

PROFILE = "wan-300"
_JOB = """\
batch_size = {batch}
rounds = {rounds}
[hosts.host]
z_width = {width}
[method]
W = 5
R = 1
depth = {depth}
[evaluation]
every = {rounds}
rows = 1
metric = "loss"
[checkpoint]
every = {every}
"""
_DEPTH = 4
_MODEL = replace(CRITEO, bottom='{ use = "wdl", embedding_dim = 16 }')


def bench_checkpoint(log: Log, turns: int = 3, rounds: int = 220, every: int = 100) -> BenchResult:
    """The ratio of the times with and without checkpoints, and the link utilization in both."""
    result = BenchResult("checkpoint", seeds=[1])
    link = find_link(PROFILE)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    used: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_pair(folder, thin=False, rounds=rounds)
        for _ in range(turns):
            for saves in (False, True):
                events, out = _run(folder, rounds, every if saves else 10 * rounds)
                timed = [e for e in events if e["event"] == "round"]
                seconds[saves].append(timed[-1]["seconds"] - timed[_DEPTH]["seconds"])
                used[saves].append(link_utilization(events, "sent", link.mbps, _DEPTH))
                size = sum(f.stat().st_size for f in out.glob("checkpoints/*/tensors.safetensors"))
                generations = len(list(out.glob("checkpoints/round-*")))
                log(
                    f"{'with' if saves else 'without'}: {seconds[saves][-1]:.1f} s, link "
                    f"utilization {used[saves][-1]:.3f}, {generations} checkpoints on disk, "
                    f"{size / 1e6:,.0f} MB in total"
                )
                result.rows.append(
                    {
                        "checkpoints": f"every {every} rounds" if saves else "none",
                        "seconds": seconds[saves][-1],
                        "line in use, host to guest": used[saves][-1],
                        "MB a checkpoint": size / 1e6 / max(1, generations),
                    }
                )
    result.figures |= {
        "checkpoint_cost": round(min(seconds[True]) / min(seconds[False]), 4),
        "line_use_with": median(used[True]),
        "line_use_without": median(used[False]),
    }
    result.notes.append(
        f"WDL, embedding 16, batch {BATCH}, Z {WIDTH}, R=1, {_DEPTH} rounds in flight, {rounds} "
        f"rounds over {PROFILE}; a checkpoint every {every}. checkpoint_cost is the ratio of the "
        "fastest turns; MB are the host's."
    )
    return result


def _run(folder: Path, rounds: int, every: int) -> tuple[list[EventDict], Path]:
    """Run both parties; return the host's events and its run folder."""
    write_settings(folder, _MODEL, port=free_port(), local=True)
    for name in PARTIES:
        path = folder / name / "party.toml"
        path.write_text(f'link = "{PROFILE}"\n{path.read_text(encoding="utf-8")}')
    job = folder / "job.toml"
    job.write_text(
        _JOB.format(batch=BATCH, rounds=rounds, width=WIDTH, depth=_DEPTH, every=every),
        encoding="utf-8",
    )
    out = f"run-{time.monotonic_ns()}"
    runs = run_parties(folder, list(PARTIES), job, out, timeout_s=600)
    return runs["host"].events, folder / "host" / out
