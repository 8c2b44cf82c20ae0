"""`scripts/bench precision`: what `precision = "tf32"` costs in AUC on a GPU.

The same runs with matrix products in float32 and in TF32: same rows, same initial weights, same
order of batches. Both round differently, so they part after some rounds like two seeds would: the
difference is a mean over seeds, with its standard error.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import torch

import celu
from bench.e2e import PAPER
from bench.pair import MAX_CODES, REGIMES, VANILLA, Pair, Shape, open_pair, pair_job, simulate_pair
from bench.report import BenchResult, Log
from celu.data.clicks import write_clicks

# The paper's sizes, on fewer rows: about one epoch.
SHAPE = replace(PAPER, rows=4_000_000, rounds=900, every=100)
LR = 0.03  # with the strong optimizer
METHODS = {"R=1": VANILLA, "R=3": celu.Method(W=5, R=3)}
_PRECISIONS = {"fp32": "highest", "tf32": "high"}


def bench_precision(log: Log, device: str, seeds: list[int], shape: Shape = SHAPE) -> BenchResult:
    """The best AUC of each run, and the mean that TF32 loses."""
    shape = replace(shape, device=device)
    result = BenchResult("precision", seeds)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        write_clicks(Path(scratch), "criteo", rows=shape.rows, max_codes=MAX_CODES)
        pair = open_pair(Path(scratch), device)
    lost: list[float] = []
    for method in METHODS:
        for seed in seeds:
            auc = {name: _auc(pair, shape, method, seed, name) for name in _PRECISIONS}
            lost.append(auc["fp32"] - auc["tf32"])
            result.rows.append({"method": method, "seed": seed, **auc, "lost": lost[-1]})
            log(f"{method}, seed {seed}: {auc['fp32']:.4f} in fp32, {auc['tf32']:.4f} in tf32")
    result.figures["tf32_auc_lost"] = mean(lost)
    result.figures["tf32_auc_lost_worst"] = max(lost)
    if len(lost) > 1:
        result.figures["tf32_auc_lost_error"] = stdev(lost) / len(lost) ** 0.5
    result.notes.append(
        f"Synthetic clicks of Criteo's shape, {shape.rows:,} rows, WDL; batch {shape.batch}, Z "
        f"{shape.width}, embedding {shape.embedding}; AdaGrad from 0, rate {LR}; the best AUC on "
        f"{shape.test_rows:,} held-out rows of {shape.rounds} rounds, on {device}. Lost: float32 "
        "less TF32, the mean over methods and seeds, and its standard error."
    )
    return result


def _auc(pair: Pair, shape: Shape, method: str, seed: int, precision: str) -> float:
    regime = REGIMES["strong"]
    job = pair_job(pair, shape, seed, regime.optimizer(LR), METHODS[method])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(_PRECISIONS[precision])
    try:
        found = simulate_pair(pair, shape, regime, job).evaluations
    finally:
        torch.set_float32_matmul_precision(before)
    return max(evaluation["auc"] for evaluation in found)
