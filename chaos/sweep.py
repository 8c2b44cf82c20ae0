"""Run many seeds, in one process or in several, and add up their outcomes."""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import torch

from chaos.run import Verdict, run_seed

_CHUNK = 20  # seeds that a worker runs at a time


@dataclass
class Totals:
    """The outcomes of the seeds so far."""

    num_seeds: int = 0
    failed: list[Verdict] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # virtual

    def add(self, verdict: Verdict) -> None:
        """Count one more seed."""
        self.num_seeds += 1
        self.faults += verdict.faults
        self.ends += verdict.ends
        self.seconds += verdict.seconds
        if verdict.problem is not None:
            self.failed.append(verdict)


def run_seeds(
    seeds: Sequence[int],
    workers: int = 1,
    on_progress: Callable[[Totals], None] = lambda totals: None,
) -> Totals:
    """Run all seeds; `on_progress` is called with the totals so far."""
    totals = Totals()
    for verdicts in _in_chunks(seeds, workers):
        for verdict in verdicts:
            totals.add(verdict)
        on_progress(totals)
    return totals


def _in_chunks(seeds: Sequence[int], workers: int) -> Iterator[list[Verdict]]:
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    workers = min(workers, len(chunks))
    if workers == 1:
        threads, thresholds = torch.get_num_threads(), gc.get_threshold()
        _configure_process()
        try:
            yield from map(_run_chunk, chunks)
        finally:
            torch.set_num_threads(threads)
            gc.set_threshold(*thresholds)
            gc.unfreeze()
        return
    spawn = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(workers, spawn, initializer=_configure_process) as pool:
        yield from pool.map(_run_chunk, chunks)


def _configure_process() -> None:
    """Tune the process for many small runs: one thread, and garbage collection less often.

    Imported modules are excluded from collection.
    """
    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def _run_chunk(seeds: Sequence[int]) -> list[Verdict]:
    return [run_seed(seed) for seed in seeds]
