"""`celu bench checkpoint`: what checkpoints cost a run, and whether they hold up its line.

The same job with and without checkpoints, in turns: two processes over mutual TLS and an emulated
WAN, with tables of embeddings of some size at the host and rounds in flight, so that the line is
what takes the time. A run without checkpoints is one whose first would come after its end; the one
that every run ends with falls outside of what is timed.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.line_use import PARTIES, line_use
from bench.report import BenchResult, Say
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


def bench_checkpoint(say: Say, turns: int = 3, rounds: int = 220, every: int = 100) -> BenchResult:
    """Ratio of times with and without, and the line's use in both."""
    result = BenchResult("checkpoint", seeds=[1])
    line = find_link(PROFILE)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    use: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_pair(folder, thin=False, rounds=rounds)
        for _ in range(turns):
            for kept in (False, True):
                events, out = _run(folder, rounds, every if kept else 10 * rounds)
                timed = [e for e in events if e["event"] == "round"]
                seconds[kept].append(timed[-1]["seconds"] - timed[_DEPTH]["seconds"])
                use[kept].append(line_use(events, "sent", line.mbps, _DEPTH))
                size = sum(f.stat().st_size for f in out.glob("checkpoints/*/tensors.safetensors"))
                generations = len(list(out.glob("checkpoints/round-*")))
                say(
                    f"{'with' if kept else 'without'}: {seconds[kept][-1]:.1f} s, line "
                    f"{use[kept][-1]:.3f}, {generations} generations of {size / 1e6:,.0f} MB in all"
                )
                result.rows.append(
                    {
                        "checkpoints": f"every {every} rounds" if kept else "none",
                        "seconds": seconds[kept][-1],
                        "line in use, host to guest": use[kept][-1],
                        "MB a checkpoint": size / 1e6 / max(1, generations),
                    }
                )
    result.figures |= {
        "checkpoint_cost": round(min(seconds[True]) / min(seconds[False]), 4),
        "line_use_with": median(use[True]),
        "line_use_without": median(use[False]),
    }
    result.notes.append(
        f"WDL, embedding 16, batch {BATCH}, Z {WIDTH}, R=1, {_DEPTH} rounds in flight, {rounds} "
        f"rounds over {PROFILE}; a checkpoint every {every}. checkpoint_cost is the ratio of the "
        "fastest turns; MB are the host's."
    )
    return result


def _run(folder: Path, rounds: int, every: int) -> tuple[list[EventDict], Path]:
    """The host's events, and its run folder."""
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
