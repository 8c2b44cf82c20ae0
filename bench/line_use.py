"""The job with which benches fill a line, and the share of it that was in use."""

from __future__ import annotations

from pathlib import Path

from bench.step import BATCH, WIDTH
from celu.testing import EventDict

PARTIES = ("guest", "host")
_JOB = """\
batch_size = {batch}
rounds = {rounds}
codec = "{codec}"
[hosts.host]
z_width = {width}
[method]
R = 1
depth = {depth}
[optimizer]
lr = 0.01
[evaluation]
every = {rounds}
rows = 1
metric = "loss"
"""


def write_job(path: Path, *, rounds: int, codec: str, depth: int) -> None:
    """Messages of 4 MiB each way and next to nothing to compute."""
    path.write_text(
        _JOB.format(batch=BATCH, rounds=rounds, codec=codec, width=WIDTH, depth=depth),
        encoding="utf-8",
    )


def line_use(events: list[EventDict], way: str, mbps: float, depth: int) -> float:
    """The share of the line's capacity that training used, while the pipeline was filled."""
    rounds = [e for e in events if e["event"] == "round"]
    first, last = rounds[len(rounds) // 4], rounds[-1 - depth]
    carried = last[f"bytes_{way}"] - first[f"bytes_{way}"]
    return float(carried * 8 / (mbps * 1e6) / (last["seconds"] - first["seconds"]))
