"""Estimates the memory of a run from one batch, before the run.

It counts the tensors that a run holds at the same time. The allocator's overhead and the library's
own buffers come on top; the memory of this process, with torch in it, is measured.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from celu.config.job import Job
from celu.engine.coding import Coding
from celu.launch.trial import Trial
from celu.party import Guest, Host
from celu.transport.message import Kind
from celu.transport.wire import HEADER

_FLOAT_BYTES = 4
_AUTO_DEPTH, _AUTO_W = 8, 5  # what `auto` usually stays below; its bounds are far higher


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by what they are for, in the order in which people ask for them."""

    process: int  # Python and torch, before any row
    weights: int
    optimizer: int
    step: int  # gradients, and what autograd retains of one batch
    table: int
    in_flight: int
    copies: int  # of the state, for checkpoints and the savepoint of `auto`
    rows: int  # mapped from files: the system may hold fewer of them

    @property
    def total(self) -> int:
        """What the run needs without the rows, which are read again where memory is short."""
        parts = (self.weights, self.optimizer, self.step, self.table, self.in_flight, self.copies)
        return self.process + sum(parts)


def estimate_memory(
    name: str, party: Guest | Host, job: Job, trial: Trial, process: int
) -> MemoryEstimate:
    """The memory of one party of a run; `process` is `resident_bytes` before it read its rows."""
    is_guest = isinstance(party, Guest)
    hosts = list(job.hosts) if is_guest else [name]
    W, R = job.tuning().for_role("guest" if is_guest else "host")
    depth = job.max_depth
    if job.auto:
        given = job.given()
        W = W if "W" in given else max(W, _AUTO_W)
        R = R if "R" in given else max(R, 2)
        depth = depth if "depth" in given else max(depth, _AUTO_DEPTH)
    z_bytes = sum(job.batch_size * job.hosts[host].z_width * _FLOAT_BYTES for host in hosts)
    table = W * (trial.batch_bytes + 2 * z_bytes) if R > 1 else 0
    in_flight = 0
    for host in hosts:
        specs = Coding(job, host).specs(Kind.ACTIVATION, Kind.DERIVATIVE).values()
        in_flight += depth * sum(HEADER.size + spec.max_bytes for spec in specs)
    if not is_guest:  # a host holds the batch and the exact Z until its derivative arrives
        in_flight += depth * (trial.batch_bytes + z_bytes)
    state = trial.weight_bytes + trial.optimizer_bytes
    return MemoryEstimate(
        process=process,
        weights=trial.weight_bytes,
        optimizer=trial.optimizer_bytes,
        step=trial.gradient_bytes + trial.graph_bytes,
        table=table,
        in_flight=in_flight,
        # With validation rows, another one of the weights: the best.
        copies=(2 if job.auto else 1) * state + (trial.weight_bytes if party.validation else 0),
        rows=_rows(party, job),
    )


def _rows(party: Guest | Host, job: Job) -> int:
    train = party.train.num_bytes
    held_out = sum(part.num_bytes for part in (party.validation, party.test) if part is not None)
    if job.order.shuffle == "rows":
        return train + held_out
    window = min(party.train.num_rows, job.order.block_rows * job.order.window_blocks)
    return 2 * train * window // max(1, party.train.num_rows) + held_out  # two windows meet


def resident_bytes() -> int:
    """The memory that this process holds now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """The memory that this process may still allocate: the machine's, or a container's limit."""
    found = []
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
    except (OSError, ValueError, IndexError):
        pass
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        found.append(max(0, int(limit) - used))
    except (OSError, ValueError):  # ValueError: "max", no limit
        pass
    return min(found, default=None)
