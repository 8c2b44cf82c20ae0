"""`scripts/bench psi`: the cost of `celu align`, compared with the multiplications that it needs.

The parties are two processes with one worker each, over mutual TLS. Every id is multiplied twice,
once by each party, so n ids at the guest and m at the host take 2 (n + m) multiplications in
total. The bound is the time of that many bare multiplications of the same library, measured while
both cores are busy, as in the runs. Cost is the CPU time of all processes of both parties, minus
that of the same commands with very few ids (starting Python, reading stores, TLS). Where two ways
of aligning are compared, they take turns, because CPU time depends on what else the cores do.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import numpy as np

from bench.report import BenchResult, Log
from celu.config.schema import Split
from celu.config.templates import SettingsTemplate, write_settings
from celu.data.store import PARTS, StoreWriter, coded_schema, with_ids
from celu.data.tags import ascending, make_tags
from celu.testing import align_parties, free_port, make_keys

PAIRS = ((10_000, 10_000), (100_000, 100_000), (300_000, 300_000), (30_000, 300_000))
GROUP_IDS = 100_000  # of each party, in both groups
SHARD_IDS = 600_000  # of each party, whole and in shards
NUM_SHARDS, SHARD_TURNS = 2, 5
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


def bench_psi(
    log: Log,
    pairs: tuple[tuple[int, int], ...] = PAIRS,
    *,
    group_ids: int = GROUP_IDS,
    shard_ids: int = SHARD_IDS,
    turns: int = 3,
    shard_turns: int = SHARD_TURNS,
) -> BenchResult:
    """Align pairs of growing and of unequal sizes, in both groups, whole and in shards."""
    result = BenchResult("psi", [])
    _align_pairs(log, result, pairs)
    with tempfile.TemporaryDirectory() as scratch:
        _compare_groups(log, result, Path(scratch), group_ids, turns)
        _compare_shards(log, result, Path(scratch), shard_ids, shard_turns)
    return result


def _align_pairs(log: Log, result: BenchResult, pairs: tuple[tuple[int, int], ...]) -> None:
    sizes = [
        *pairs,
        *((num_host, num_guest) for num_guest, num_host in pairs if num_guest != num_host),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        bare: list[float] = []
        wire: list[float] = []
        # The first alignment also reads the packages from the disk.
        start_up = median(_align(Path(scratch) / f"few-{n}", _FEW, _FEW)[0] for n in range(3))
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


def _compare_groups(log: Log, result: BenchResult, folder: Path, ids: int, turns: int) -> None:
    """Both groups, in turns."""
    costs: dict[str, list[float]] = {"P-256": [], "x25519": []}
    for turn in range(turns):
        for group, measured in costs.items():
            few, many = folder / f"few-{turn}-{group}", folder / f"many-{turn}-{group}"
            start_up, cpu = (
                _align(where, count, count, group)[0] for where, count in ((few, _FEW), (many, ids))
            )
            measured.append(cpu - start_up)
        log(", ".join(f"{group}: {seconds[-1]:.1f} s" for group, seconds in costs.items()))
    per_id = {group: 1e6 * median(seconds) / (2 * ids) for group, seconds in costs.items()}
    result.figures["x25519_over_p256"] = per_id["x25519"] / per_id["P-256"]
    result.notes.append(
        f"x25519_over_p256: CPU time of aligning {ids:,} and {ids:,} ids with each group, medians "
        f"of {turns} in turns: {per_id['x25519']:.0f} us an id over {per_id['P-256']:.0f}."
    )


def _compare_shards(log: Log, result: BenchResult, folder: Path, ids: int, turns: int) -> None:
    """All rows at once and in shards, in turns, with the faster group: its overhead is larger."""
    whole: dict[int, list[float]] = {_FEW: [], ids: []}
    sharded: dict[int, list[float]] = {_FEW: [], ids: []}
    for turn in range(turns):
        for count in (_FEW, ids):
            where = folder / f"shards-{turn}-{count}"
            whole[count].append(_align(where, count, count, "x25519")[0])
            expected = _alignments(where)
            parts = [("--shard", f"{index}/{NUM_SHARDS}") for index in range(NUM_SHARDS)]
            costs = [_align_again(where, *options)[0] for options in (*parts, ("--merge",))]
            sharded[count].append(sum(costs))
            assert _alignments(where) == expected
        log(
            f"whole: {whole[ids][-1]:.1f} s, {NUM_SHARDS} shards and merge: "
            f"{sharded[ids][-1]:.1f} s; start-up: {whole[_FEW][-1]:.1f} and "
            f"{sharded[_FEW][-1]:.1f} s"
        )
    whole_s, sharded_s = (median(cost[ids]) - median(cost[_FEW]) for cost in (whole, sharded))
    result.figures["align_shards_over_one"] = sharded_s / whole_s
    result.notes.append(
        f"align_shards_over_one: CPU time of aligning {ids:,} and {ids:,} ids in {NUM_SHARDS} "
        f"shards and merging them over that of one alignment (x25519, medians of {turns} in "
        "turns), dummies included. The start-up of the commands is subtracted, their median with "
        f"{_FEW} ids; the merged files are the same byte for byte."
    )


def _multiplications() -> list[float]:
    """Seconds of a bare multiplication (decompressed, off the wire) while both cores are busy."""
    command = [sys.executable, "-c", _MULTIPLY]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    measured = [json.loads(process.communicate(timeout=120)[0]) for process in running]
    return [mean(pair) for pair in zip(*measured, strict=True)]


def _align(
    folder: Path, num_guest: int, num_host: int, group: str = "P-256"
) -> tuple[float, float]:
    """CPU and wall seconds of an alignment in which half of the smaller set is common."""
    common = min(num_guest, num_host) // 2
    for name, count in (("guest", num_guest), ("host", num_host)):
        own = [f"{name}-{i}" for i in range(count - common)]
        _write_ids(folder / name / "store", [f"both-{i}" for i in range(common)] + own)
    write_settings(folder, _TEMPLATE, port=free_port(), local=True, aligned=False)
    with (folder / "job.toml").open("a", encoding="utf-8") as file:
        file.write(f'\n[alignment]\ngroup = "{group}"\n')
    make_keys(folder, ["guest", "host"])
    measured = _align_again(folder)
    for content in _alignments(folder):
        assert sum(json.loads(content["alignment.json"])["rows"].values()) == common
    return measured


def _align_again(folder: Path, *options: str) -> tuple[float, float]:
    """CPU and wall seconds of `celu align` at both parties."""
    before, started = _children_cpu_s(), time.perf_counter()
    align_parties(folder, ["guest", "host"], folder / "job.toml", *options, timeout_s=1800)
    return _children_cpu_s() - before, time.perf_counter() - started


def _alignments(folder: Path) -> list[dict[str, bytes]]:
    """The files of both parties' alignments."""
    folders = [folder / name / "alignment" for name in ("guest", "host")]
    return [{path.name: path.read_bytes() for path in sorted(f.iterdir())} for f in folders]


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _write_ids(path: Path, ids: list[str]) -> None:
    import pyarrow as pa

    split = Split()
    with StoreWriter(path, coded_schema(["label", "x"], {}, split)) as store:
        cut = len(ids) // 10
        for part, some in zip(PARTS, (ids[cut:], ids[:cut]), strict=True):
            by_tag = ascending(make_tags(some, split.seed))  # as `celu prepare` writes them
            names = [some[row] for row in by_tag]
            values = np.zeros(len(names), np.float32)
            store.write(part, with_ids(pa.table({"label": values, "x": values}), names, split))
