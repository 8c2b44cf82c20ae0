"""`scripts/bench psi`: the cost of `celu align`, compared with the multiplications that it needs.

The parties are two processes with one worker each, over mutual TLS. Every id is multiplied twice,
once by each party, so n ids at the guest and m at the host take 2 (n + m) multiplications in
total. The bound is the time of that many bare multiplications of the same library, measured while
both cores are busy, as in the runs. Cost is the CPU time of all processes of both parties, minus
that of an alignment of very few ids (starting Python, reading stores, TLS).
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

import numpy as np

from bench.report import BenchResult, Log
from celu.config.schema import Split
from celu.config.templates import SettingsTemplate, write_settings
from celu.data.store import PARTS, StoreWriter, coded_schema, with_ids
from celu.testing import align_parties, free_port, make_keys

PAIRS = ((10_000, 10_000), (100_000, 100_000), (300_000, 300_000), (30_000, 300_000))
_FEW = 200
_TEMPLATE = SettingsTemplate(guest="guest", host="host", bottom='"wdl"', top='"wdl"')
# Prints the CPU seconds of one multiplication: of a decompressed point, and of a compressed one, as
# it comes off the wire.
_MULTIPLY = """
import json, os, time
from cryptography.hazmat.primitives.asymmetric import ec
curve, ecdh, count = ec.SECP256R1(), ec.ECDH(), 20_000
key = ec.generate_private_key(curve)
points = [ec.generate_private_key(curve).public_key() for _ in range(1000)] * (count // 1000)
started = time.process_time()
wire = [b"\\x02" + key.exchange(ecdh, point) for point in points]
middle = time.process_time()
load = ec.EllipticCurvePublicKey.from_encoded_point
for x in wire:
    key.exchange(ecdh, load(curve, x))
print(json.dumps([(middle - started) / count, (time.process_time() - middle) / count]))
"""


def bench_psi(log: Log, pairs: tuple[tuple[int, int], ...] = PAIRS) -> BenchResult:
    """Align pairs of growing and of unequal sizes, with either side the larger one."""
    result = BenchResult("psi", [])
    sizes = [
        *pairs,
        *((num_host, num_guest) for num_guest, num_host in pairs if num_guest != num_host),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        bare: list[float] = []
        wire: list[float] = []
        start_up = _align(Path(scratch) / "few", _FEW, _FEW)[0]
        for num_guest, num_host in sizes:
            for times, seconds in zip((bare, wire), _multiplications(), strict=True):
                times.append(seconds)
            cpu, wall = _align(Path(scratch) / f"{num_guest}-{num_host}", num_guest, num_host)
            count = num_guest + num_host
            row = {
                "ids of the guest": num_guest,
                "ids of the host": num_host,
                "us of processor time an id": 1e6 * (cpu - start_up) / count,
                "multiplications of a point off the wire": 2 * count * wire[-1] / (cpu - start_up),
                "of a point in hand": 2 * count * bare[-1] / (cpu - start_up),
                "wall seconds": round(wall, 1),
            }
            result.rows.append(row)
            log(f"{num_guest:,} x {num_host:,}: {cpu:.1f} s of CPU time, {wall:.1f} s")
    per_id = [row["us of processor time an id"] for row in result.rows]
    largest = max(range(len(pairs)), key=lambda i: sum(pairs[i]))
    small = min(range(len(pairs)), key=lambda i: sum(pairs[i]))
    cost = 1e-6 * per_id[largest]
    result.figures |= {
        "fraction_of_bound": 2 * mean(wire) / cost,
        "fraction_of_bound_in_hand": 2 * mean(bare) / cost,
        "growth_largest_over_smallest": per_id[largest] / per_id[small],
        "ids_a_second_a_core": 1 / cost,
        "multiplications_a_second_a_core": 1 / mean(wire),
    }
    result.notes.append(
        f"fraction_of_bound: the time of bare multiplications, two for each of "
        f"{sum(pairs[largest]):,} ids, over the CPU time of the alignment. The points come off the "
        "wire (32 bytes, which `cryptography` has to decompress, check and multiply). In hand: the "
        "same with points that are already decompressed. Growth: CPU time per id, largest over "
        f"smallest. {1000 * start_up:.0f} ms of start-up of both parties together are subtracted."
    )
    return result


def _multiplications() -> list[float]:
    """Seconds of a bare multiplication (decompressed, off the wire) while both cores are busy."""
    command = [sys.executable, "-c", _MULTIPLY]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    measured = [json.loads(process.communicate(timeout=120)[0]) for process in running]
    return [mean(pair) for pair in zip(*measured, strict=True)]


def _align(folder: Path, num_guest: int, num_host: int) -> tuple[float, float]:
    """CPU and wall seconds of an alignment in which half of the smaller set is common."""
    common = min(num_guest, num_host) // 2
    for name, count in (("guest", num_guest), ("host", num_host)):
        own = [f"{name}-{i}" for i in range(count - common)]
        _write_ids(folder / name / "store", [f"both-{i}" for i in range(common)] + own)
    write_settings(folder, _TEMPLATE, port=free_port(), local=True, aligned=False)
    make_keys(folder, ["guest", "host"])
    before, started = _children_cpu_s(), time.perf_counter()
    align_parties(folder, ["guest", "host"], folder / "job.toml", timeout_s=1800)
    wall = time.perf_counter() - started
    for name in ("guest", "host"):
        facts = json.loads((folder / name / "alignment" / "alignment.json").read_text())
        assert sum(facts["rows"].values()) == common
    return _children_cpu_s() - before, wall


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _write_ids(path: Path, ids: list[str]) -> None:
    import pyarrow as pa

    split = Split()
    with StoreWriter(path, coded_schema(["label", "x"], {}, split)) as store:
        cut = len(ids) // 10
        for part, names in zip(PARTS, (ids[cut:], ids[:cut]), strict=True):
            values = np.zeros(len(names), np.float32)
            store.write(part, with_ids(pa.table({"label": values, "x": values}), names, split))
