"""A job that saturates a link, and the share of the link's capacity that a run used."""

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
    """Write a job with messages of 4 MiB each way and almost no computing."""
    path.write_text(
        _JOB.format(batch=BATCH, rounds=rounds, codec=codec, width=WIDTH, depth=depth),
        encoding="utf-8",
    )


def link_utilization(events: list[EventDict], direction: str, mbps: float, depth: int) -> float:
    """The share of the capacity used in a direction ("sent", "received") with a full pipeline."""
    rounds = [e for e in events if e["event"] == "round"]
    first, last = rounds[len(rounds) // 4], rounds[-1 - depth]
    num_bytes = last[f"bytes_{direction}"] - first[f"bytes_{direction}"]
    return float(num_bytes * 8 / (mbps * 1e6) / (last["seconds"] - first["seconds"]))
