"""`scripts/bench codec`: what each codec costs in time and rounds, and saves in bytes.

Time is compared with a copy of the tensor in memory. Rounds are those to the same held-out AUC,
compared with float32 with the same R and seed. Runs that differ only in rounding also differ by
some rounds, so we do not compare single evaluations: we evaluate often, take the moving average,
and compare the rounds to several AUCs on float32's curve. Local steps reuse a batch together with
its rounding errors, so the cost of a codec grows with R.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import celu
from bench.report import BenchResult, Log
from bench.samples import prepare_sample
from celu.codecs.registry import CODECS
from celu.config.schema import Split
from celu.data.clicks import write_clicks
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower

SHAPE = (4096, 256)  # the paper's
WIDTH, LR, EVERY = 64, 0.02, 5
# SHARES: at which shares of float32's rounds AUCs are compared. AVERAGED: the number of evaluations
# in the moving average. LONGER: other codecs may take up to this multiple of float32's rounds.
SHARES, AVERAGED, LONGER = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), 9, 1.3
INIT = 0.1
SMALL = "4bit"
# By the guest's R: the codecs whose rounds are compared.
CODECS_BY_R: dict[int, tuple[str, ...]] = {
    1: ("fp32", "bf16", "fp16", "int8", "4bit", "2bit"),
    3: ("fp32", "int8", "4bit"),
    5: ("fp32", "int8", "4bit"),
}


def bench_codec(log: Log, data: Path | None, seeds: list[int]) -> BenchResult:
    """Measure on synthetic clicks, and on the Criteo sample in `data`, if given."""
    torch.set_num_threads(1)
    result = BenchResult("codec", seeds)
    for name in CODECS:
        result.rows.append(_time(name))
    with tempfile.TemporaryDirectory() as scratch:
        pairs = {"synthetic clicks": (_synthetic(Path(scratch)), 1024, 250)}
        if data is not None:
            pairs["Criteo sample"] = (_sample(Path(scratch), data), 512, 240)
        ratios: dict[tuple[int, str], list[float]] = {}
        for where, (pair, batch, rounds) in pairs.items():
            for R, codecs in CODECS_BY_R.items():
                exact: list[Curve] = []
                for codec in codecs:
                    curves = [
                        _curve(pair, batch, codec, R, seed, round(LONGER * rounds))
                        for seed in seeds
                    ]
                    exact = exact or curves
                    by_seed = [
                        _rounds_ratio(curve, reference, rounds)
                        for curve, reference in zip(curves, exact, strict=True)
                    ]
                    ratio = mean(by_seed)
                    result.rows.append(
                        {
                            "codec": codec,
                            "data": where,
                            "guest R": R,
                            f"AUC after {rounds} rounds": mean(
                                _auc_after(c, rounds) for c in curves
                            ),
                            "rounds over fp32": ratio,
                            "by seed": by_seed,
                        }
                    )
                    shown = ", ".join(f"{r:.3f}" for r in by_seed)
                    log(f"{where}, R={R}, {codec}: {shown} of fp32's rounds")
                    ratios.setdefault((R, codec), []).append(ratio)
    plain, small = (CODECS[name].max_bytes(*SHAPE) for name in ("fp32", SMALL))
    result.figures |= {
        "int8_rounds": _mean(ratios, "int8"),
        "int8_rounds_worst": _worst(ratios, "int8"),
        "small_rounds": _mean(ratios, SMALL),
        "small_rounds_worst": _worst(ratios, SMALL),
        "small_rounds_R5": max(ratios[5, SMALL]),
        "small_bytes": plain / small,
    }
    result.notes.append(
        f"Timings: {SHAPE}, one thread, compared with a copy of it. Rounds: WDL, Z {WIDTH}, batch "
        f"1024 (on the sample 512), AdaGrad with initial accumulator 0, lr {LR}, one codec for all "
        "messages, local steps at the guest only. Ratios are means over seeds and over the AUCs "
        f"that fp32 had after {SHARES[0]:.0%} to {SHARES[-1]:.0%} of its rounds; an AUC that is "
        f"not reached in {LONGER} times the rounds counts as reached at the end. int8_rounds and "
        f"small_rounds ({SMALL}) are means over the datasets and R = 1, 3; the *_worst figures "
        "are the worst of these. The ratio of a single seed varies by some percent with any codec, "
        "bf16 included."
    )
    return result


def _time(name: str) -> dict[str, Any]:
    codec = CODECS[name]
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    noise = torch.Generator().manual_seed(1)
    payload = codec.encode(x, noise)
    copy = _seconds(x.clone)
    return {
        "codec": name,
        "bytes a row": codec.max_bytes(*SHAPE) / SHAPE[0],
        "times fewer": CODECS["fp32"].max_bytes(*SHAPE) / codec.max_bytes(*SHAPE),
        "encode over a copy": _seconds(lambda: codec.encode(x, noise)) / copy,
        "decode over a copy": _seconds(lambda: codec.decode(payload, *SHAPE)) / copy,
    }


def _seconds(function: Callable[[], object], turns: int = 15) -> float:
    taken = []
    for _ in range(turns):
        started = time.perf_counter()
        function()
        taken.append(time.perf_counter() - started)
    return median(taken)


Pair = dict[str, celu.StoreDatasets]
Floats = NDArray[np.float64]


def _synthetic(folder: Path) -> Pair:
    write_clicks(folder / "clicks", "criteo", rows=1_000_000, max_codes=20_000)
    return _open(folder / "clicks")


def _sample(folder: Path, data: Path) -> Pair:
    prepare_sample(folder / "criteo", "criteo", data, Split())
    return _open(folder / "criteo")


def _open(folder: Path) -> Pair:
    rows = {}
    for name in ("guest", "host"):
        store = celu.open_store(folder / name / "store")
        rows[name] = celu.open_datasets(store, store.inputs(), label=name == "guest")
    return rows


Curve = list[float]  # held-out AUC after EVERY, 2 EVERY ... rounds


def _curve(pair: Pair, batch: int, codec: str, R: int, seed: int, rounds: int) -> Curve:
    """Train, and return the held-out AUC at each evaluation."""
    job = celu.Job(
        seed=seed,
        rounds=rounds,
        batch_size=batch,
        hosts={"host": celu.HostTerms(z_width=WIDTH)},
        codec=codec,
        method=celu.Method(R={"guest": R, "host": 1}),
        optimizer=celu.Optimizer(name="adagrad", lr=LR, initial_accumulator=0.0),
        evaluation=celu.Evaluation(every=EVERY, rows=20_000),
    )
    torch.manual_seed(seed)

    def tower(rows: celu.StoreDatasets) -> Tower:
        columns = {name: t.shape[1] for name, t in rows.train.inputs.items()}
        return Tower(WIDTH, columns, rows.train.sizes, embedding_dim=8, hidden=(64,), init_std=INIT)

    guest, host = pair["guest"], pair["host"]
    result = celu.simulate(
        job,
        celu.Guest(
            top=WideDeepTop((WIDTH, WIDTH), hidden=(64,), init_std=INIT),
            loss="binary",
            train=guest.train,
            test=guest.test,
            bottom=tower(guest),
        ),
        {"host": celu.Host(bottom=tower(host), train=host.train, test=host.test)},
    )
    return [evaluation["auc"] for evaluation in result.evaluations]


def _rounds_ratio(curve: Curve, exact: Curve, rounds: int) -> float:
    """Rounds over those of the float32 run, averaged over several AUCs on its curve."""
    targets = [_auc_after(exact, share * rounds) for share in SHARES]
    return mean(_reached(curve, target) / _reached(exact, target) for target in targets)


def _auc_after(curve: Curve, rounds: float) -> float:
    return float(np.interp(rounds, *_smooth(curve)))


def _reached(curve: Curve, target: float) -> float:
    """Rounds to an AUC, or all rounds if it is not reached."""
    rounds, aucs = _smooth(curve)
    return float(np.interp(target, aucs, rounds))


def _smooth(curve: Curve) -> tuple[Floats, Floats]:
    """Rounds, and the best moving average of the AUC up to each."""
    window = np.ones(AVERAGED) / AVERAGED
    aucs: Floats = np.maximum.accumulate(np.convolve(curve, window, mode="valid"))
    rounds: Floats = EVERY * (np.arange(len(aucs), dtype=np.float64) + (AVERAGED + 1) / 2)
    return rounds, aucs


def _mean(ratios: dict[tuple[int, str], list[float]], codec: str) -> float:
    return mean(r for R in (1, 3) for r in ratios[R, codec])


def _worst(ratios: dict[tuple[int, str], list[float]], codec: str) -> float:
    return max(ratio for R in (1, 3) for ratio in ratios[R, codec])
