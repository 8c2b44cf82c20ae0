"""`scripts/bench data`: the cost of `celu prepare` and of loading batches, on Criteo-shaped files.

Prepare is compared with a bare scan: the same reader of the same library parses the same synthetic
file into the same types and drops the rows. Batch loading is compared with the training step that
uses the batch: the paper's WDL at batch 4096, both parties.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import celu
from bench.report import BenchResult, Log
from celu.data.batch_loader import BatchLoader
from celu.data.clicks import click_chunk
from celu.data.order import BatchOrder
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower
from celu.prepare.presets import CRITEO_CATEGORIES, CRITEO_NUMBERS

CHUNK = 1 << 17
BATCH, WIDTH = 4096, 256
_TIMED = """
import json, sys, time
from pathlib import Path
from bench.data import prepare_file, scan_file
work = {"prepare": prepare_file, "scan": scan_file}[sys.argv[1]]
started = time.perf_counter()
work(Path(sys.argv[2]), Path(sys.argv[3]), **json.loads(sys.argv[4]))
print(json.dumps(time.perf_counter() - started))
"""


def bench_data(
    log: Log, *, small: int = 1_000_000, large: int = 10_000_000, turns: int = 3
) -> BenchResult:
    """Prepare a small and a large file, and load batches from the large one."""
    torch.set_num_threads(1)
    result = BenchResult("data", [1])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        times: dict[str, list[float]] = {"scan": [], "prepare": [], "one thread": []}
        peaks = {}
        for rows in (small, large):
            file = folder / f"{rows}.tsv"
            write_raw(file, rows)
            log(f"{rows:,} rows written, {file.stat().st_size / 1e6:,.0f} MB")
            for _ in range(turns if rows == small else 1):
                scanned = _in_subprocess("scan", file, folder)[0]
                seconds, peaks[rows] = _in_subprocess("prepare", file, folder / f"stores-{rows}")
                if rows == small:
                    times["scan"].append(scanned)
                    times["prepare"].append(seconds)
                    one = _in_subprocess("prepare", file, folder / "one", threads=1)
                    times["one thread"].append(one[0])
                result.rows.append(
                    {
                        "rows": rows,
                        "scan s": scanned,
                        "prepare s": seconds,
                        "rows a second": rows / seconds,
                        "peak MiB": peaks[rows],
                    }
                )
                log(f"scan {scanned:.1f} s, prepare {seconds:.1f} s, peak {peaks[rows]:.0f} MiB")
            if rows == large:
                divided = _in_subprocess("prepare", file, folder / "divided", at_once=8)[1]
                log(f"with rows divided in two steps: peak {divided:.0f} MiB")
            file.unlink()
        loading = _measure_loading(log, folder / f"stores-{large}")
    result.figures |= {
        "prepare_over_scan": median(times["prepare"]) / median(times["scan"]),
        "prepare_over_scan_10m": result.rows[-1]["prepare s"] / result.rows[-1]["scan s"],
        "peak_mib_10m": peaks[large],
        "peak_growth": peaks[large] / peaks[small],
        "peak_growth_two_steps": divided / peaks[small],
        "prepare_one_thread_over_all": median(times["one thread"]) / median(times["prepare"]),
        **loading,
    }
    result.notes.append(
        f"prepare: {small:,} rows of 13 numbers and 26 hashed categories into the stores of both "
        f"parties, median of {turns}; peaks are of the process, at {small:,} and {large:,} rows. "
        f"Two steps: the same {large:,} rows, divided into at most 8 buckets at a time; more than "
        "60 million are divided in two steps too, into at most 512. One thread: wall time with "
        f"--threads 1 over that with a thread for each core, medians of {turns}. "
        f"feed: loading batches of {BATCH} for both parties from the {large:,} rows, compared with "
        "a round of training (the paper's WDL, embedding 128, both parties' steps, one thread). "
        "By blocks: as for a store larger than memory, from files dropped from the page cache."
    )
    return result


def write_raw(path: Path, rows: int) -> None:
    """Write a Criteo-shaped file: label, 13 integers, 26 hexadecimal ids, some values missing."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    options = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with path.open("wb") as file:
        for start in range(0, rows, CHUNK):
            count = min(CHUNK, rows - start)
            columns = dict(_raw_columns(start // CHUNK, count))
            pa_csv.write_csv(pa.table(columns), file, options)


def _raw_columns(chunk: int, rows: int) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    clicks = click_chunk("criteo", seed=1, chunk=chunk, rows=rows)
    random = np.random.default_rng(chunk)
    yield "label", pa.array(clicks.label.astype(np.int32))
    for name in CRITEO_NUMBERS:
        values = np.expm1(np.clip(clicks.guest[name], 0, 12)).astype(np.int32)
        yield name, pa.array(values, mask=random.random(rows) < 0.1)
    for number, name in enumerate(CRITEO_CATEGORIES):
        codes = (clicks.host[name].astype(np.uint64) * 2654435761 + number * 97) % 2**32
        distinct, indices = np.unique(codes, return_inverse=True)
        texts = pa.array([f"{code:08x}" for code in distinct.tolist()])
        column = pc.take(texts, pa.array(indices))
        yield name, pc.if_else(pa.array(random.random(rows) < 0.05), None, column)


def prepare_file(
    file: Path, out: Path, threads: int | None = None, at_once: int | None = None
) -> None:
    """Do what `celu prepare criteo` does, replacing the stores of an earlier turn."""
    from celu.config.schema import Split
    from celu.prepare import spill
    from celu.prepare.pipeline import Target, prepare
    from celu.prepare.presets import criteo

    parties = criteo(Split())
    targets = [Target(declared, out / party / "store") for party, declared in parties.items()]
    spill.MAX_AT_ONCE = at_once or spill.MAX_AT_ONCE
    prepare([file], targets, replace=True, threads=threads)


def scan_file(file: Path, out: Path) -> None:
    """The bare scan: read the same types with the same library and drop the rows."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    from celu.prepare.delimited import BLOCK_BYTES

    del out
    names = ["label", *CRITEO_NUMBERS, *CRITEO_CATEGORIES]
    types = {name: pa.int64() for name in ("label", *CRITEO_NUMBERS)}
    types |= {name: pa.string() for name in CRITEO_CATEGORIES}
    reader = pa_csv.open_csv(
        file,
        read_options=pa_csv.ReadOptions(column_names=names, block_size=BLOCK_BYTES),
        parse_options=pa_csv.ParseOptions(delimiter="\t"),
        convert_options=pa_csv.ConvertOptions(column_types=types, strings_can_be_null=True),
    )
    for _ in reader:
        pass


def _in_subprocess(what: str, file: Path, out: Path, **options: int) -> tuple[float, float]:
    """Run `prepare` or `scan` in a subprocess; return its seconds and its peak memory in MiB."""
    command = [sys.executable, "-c", _TIMED, what, str(file), str(out), json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return float(json.loads(output)), used.ru_maxrss / 1024


def _measure_loading(log: Log, stores: Path) -> dict[str, float]:
    datasets = {}
    for name in ("guest", "host"):
        store = celu.open_store(stores / name / "store")
        datasets[name] = celu.open_datasets(store, store.inputs(), label=name == "guest")
    step = _step_seconds(datasets["guest"], datasets["host"])
    log(f"a round of training: {1000 * step:.1f} ms")
    figures = {}
    for figure, order in (
        ("feed_over_step", celu.Order()),
        ("feed_over_step_blocks", celu.Order(shuffle="blocks")),
    ):
        if order.shuffle == "blocks":
            _drop_from_page_cache(stores)
        seconds = _loading_seconds([rows.train for rows in datasets.values()], order)
        log(f"both parties' batches by {order.shuffle}: {1000 * seconds:.2f} ms")
        figures[figure] = step / seconds
    return figures


def _step_seconds(guest: celu.StoreDatasets, host: celu.StoreDatasets, rounds: int = 12) -> float:
    job = celu.Job(
        rounds=rounds,
        batch_size=BATCH,
        hosts={"host": celu.HostTerms(z_width=WIDTH)},
        method=celu.Method(R=1),
        evaluation=celu.Evaluation(every=10 * rounds, rows=BATCH),
    )
    torch.manual_seed(1)
    at: list[float] = []

    def record(event: celu.Event) -> None:
        if event.event == "round":
            at.append(time.perf_counter())

    def tower(rows: celu.StoreDatasets) -> Tower:
        train = rows.train
        return Tower(WIDTH, {n: t.shape[1] for n, t in train.inputs.items()}, train.sizes)

    celu.simulate(
        job,
        celu.Guest(
            top=WideDeepTop((WIDTH, WIDTH)),
            loss="binary",
            train=guest.train,
            test=guest.test,
            bottom=tower(guest),
        ),
        {"host": celu.Host(bottom=tower(host), train=host.train, test=host.test)},
        callbacks=[record],
    )
    return median(np.diff(at).tolist())


def _loading_seconds(datasets: list[celu.Dataset], order: celu.Order, rounds: int = 600) -> float:
    """Seconds to load a batch of each dataset, with no training in between."""
    loaders = [
        BatchLoader(dataset, BatchOrder(1, dataset.num_rows, BATCH, order), torch.device("cpu"))
        for dataset in datasets
    ]
    for loader in loaders:
        loader.batch(0)  # the first one computes the order of the epoch
    started = time.perf_counter()
    for round_ in range(1, rounds):
        for loader in loaders:
            loader.batch(round_)
    seconds = (time.perf_counter() - started) / (rounds - 1)
    for loader in loaders:
        loader.close()
    return seconds


def _drop_from_page_cache(stores: Path) -> None:
    """Make the next read of the column files come from disk."""
    for file in stores.rglob("*.bin"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
