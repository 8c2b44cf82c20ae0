"""`scripts/bench privacy --large`: how the cost of randomized labels falls with the number of rows.

A model that the Criteo sample has trained, the teacher, draws the labels of as many rows as needed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import torch

from bench.parallel_runs import SavedRuns, run_all
from bench.privacy import NONE, SMALL_EPSILON, TWIN
from bench.privacy_runs import Defence, Modules, read_sample, train
from bench.report import BenchResult, Log
from bench.teacher_rows import TEST_ROWS, Teacher, open_teacher

# Numbers of rows, and the defences whose cost is measured with them.
SCALES = (
    (163_000, (TWIN, SMALL_EPSILON)),
    (2_600_000, (TWIN, SMALL_EPSILON)),
    (10_400_000, (SMALL_EPSILON,)),
)
SCALE_BATCH = 1024


@dataclass(frozen=True)
class _AtScale:
    """The AUC of one epoch of a teacher's rows."""

    num_rows: int
    defence: Defence
    seed: int
    device: str

    def __str__(self) -> str:
        return f"{self.num_rows:,} rows, {self.defence.name}, seed {self.seed}"

    def __call__(self, teacher: Teacher) -> float:
        pair = teacher.rows(self.num_rows, self.seed)
        rounds = self.num_rows // SCALE_BATCH
        modules = Modules.of(pair, self.seed).to(self.device)
        trained = train(pair, self.defence, self.seed, rounds, batch=SCALE_BATCH, modules=modules)
        return trained["guest"].metrics["auc"]


def bench_privacy_at_scale(
    log: Log,
    data: Path,
    seeds: Sequence[int],
    workers: int = 1,
    device: str = "cpu",
    out: Path | None = None,
) -> BenchResult:
    """Measure the cost of randomized labels with more and more rows of one teacher.

    Finished runs are saved in the folder `out`, and are not repeated.
    """
    torch.set_num_threads(1)
    saved = SavedRuns(None if out is None else out / "runs-large.jsonl")
    result = BenchResult("privacy", list(seeds), profile="large")
    runs = [
        _AtScale(num_rows, defence, seed, device)
        for num_rows, defences in reversed(SCALES)  # the longest first
        for defence in (NONE, *defences)
        for seed in seeds
    ]
    with tempfile.TemporaryDirectory() as folder:
        teacher = Teacher.trained(read_sample(data, Path(folder)), seed=100)
        weights = teacher.save(Path(folder) / "teacher.pt")
        reopen = partial(open_teacher, Path(folder), weights)
        found = run_all(log, runs, reopen if workers > 1 else lambda: teacher, workers, saved)
    aucs: dict[tuple[int, Defence], list[float]] = {}
    for run in reversed(runs):
        aucs.setdefault((run.num_rows, run.defence), []).append(found[run])
    costs: dict[tuple[int, Defence], float] = {}
    for num_rows, defences in SCALES:
        for defence in (NONE, *defences):
            auc = mean(aucs[num_rows, defence])
            cost = mean(aucs[num_rows, NONE]) - auc
            costs[num_rows, defence] = cost
            result.rows.append(
                {"rows": num_rows, "defence": defence.name, "AUC": auc, "cost": cost}
            )
    small, middle, large = (rows for rows, _ in SCALES)
    result.figures |= {
        "eps1_cost_163k": costs[small, TWIN],
        "eps04_cost_163k": costs[small, SMALL_EPSILON],
        "eps1_cost_2m6": costs[middle, TWIN],
        "eps04_cost_2m6": costs[middle, SMALL_EPSILON],
        "eps04_cost_10m": costs[large, SMALL_EPSILON],
    }
    result.notes.append(
        f"One epoch, batch {SCALE_BATCH}, means of {len(seeds)} seeds, AUC of {TEST_ROWS:,} rows. "
        "Features are those of the Criteo sample, drawn with replacement; a model that the sample "
        "has trained draws the labels. The number of different ids does not grow with the rows."
    )
    return result
