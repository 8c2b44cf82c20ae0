"""`celu bench codec`: what each codec costs in time and rounds, and saves in bytes.

Time is set against a copy of the tensor in memory. Rounds are those to the same held-out AUC, read
off between two evaluations, against float32 with the same R. Local steps re-use a batch's rounding
errors along with it, so a codec's cost grows with R.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

import celu
from celu.bench.report import BenchResult, Say
from celu.codecs.named import CODECS
from celu.config.schema import Category, Split
from celu.data.clicks import write_clicks
from celu.errors import DataError
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower
from celu.prepare.making import Target, prepare
from celu.prepare.presets import criteo

SHAPE = (4096, 256)  # the paper's
WIDTH, BATCH, LR, EVERY = 64, 512, 0.03, 10
SMALL = "4bit"
ROUNDS_OF: dict[int, tuple[str, ...]] = {
    1: ("fp32", "bf16", "int8", "4bit", "2bit"),
    3: ("fp32", "int8", "4bit"),
    5: ("fp32", "int8", "4bit"),
}


def bench_codec(say: Say, data: Path | None, seeds: list[int]) -> BenchResult:
    """Measure on made-up clicks, and on the Criteo sample in `data` if that is given."""
    torch.set_num_threads(1)
    result = BenchResult("codec", seeds)
    for name in CODECS:
        result.rows.append(_time(name))
    with tempfile.TemporaryDirectory() as scratch:
        pairs = {"made-up clicks": (_made_up(Path(scratch)), 0.73, 400)}
        if data is not None:
            pairs["Criteo sample"] = (_sample(Path(scratch), data), 0.76, 317)
        ratios: dict[tuple[int, str], list[float]] = {}
        for where, (pair, target, most) in pairs.items():
            for R, codecs in ROUNDS_OF.items():
                exact: list[float | None] = []
                for codec in codecs:
                    runs = [_rounds(pair, codec, R, seed, target, most) for seed in seeds]
                    exact = exact or runs
                    ratio = _ratio(runs, exact)
                    result.rows.append(
                        {
                            "codec": codec,
                            "data": where,
                            "guest R": R,
                            f"rounds to the target ({target})": _mean(runs),
                            "over fp32": ratio,
                            "by seed": runs,
                        }
                    )
                    say(f"{where}, R={R}, {codec}: {runs}, {ratio} of fp32")
                    if ratio is not None:
                        ratios.setdefault((R, codec), []).append(ratio)
    plain, small = (CODECS[name].max_bytes(*SHAPE) for name in ("fp32", SMALL))
    result.figures |= {
        "int8_rounds": _worst(ratios, "int8"),
        "small_rounds": _worst(ratios, SMALL),
        "small_rounds_R5": max(ratios.get((5, SMALL), [0.0])) or None,
        "small_bytes": plain / small,
    }
    result.notes.append(
        f"Times: {SHAPE}, one thread, against a copy of it. Rounds: WDL, Z {WIDTH}, batch {BATCH}, "
        f"AdaGrad with its accumulator at 0, lr {LR}, one codec for all messages, local steps at "
        f"the guest alone; means over seeds. int8_rounds and small_rounds ({SMALL}) are the larger "
        "of the ratios to fp32 over the data sets and R = 1, 3."
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


def _seconds(work: Callable[[], object], turns: int = 15) -> float:
    taken = []
    for _ in range(turns):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return median(taken)


Pair = dict[str, celu.Rows]


def _made_up(folder: Path) -> Pair:
    write_clicks(folder / "clicks", "criteo", rows=450_000, max_codes=2000)
    return _open(folder / "clicks")


def _sample(folder: Path, data: Path) -> Pair:
    file = data / "criteo_random.tsv.gz"
    if not file.is_file():
        raise DataError(f"{file}: expected the click data, which celu does not ship")
    parties = criteo(Split(), Category(vocabulary=1_000_000, min_count=2))
    prepare([file], [Target(d, folder / "criteo" / p / "store") for p, d in parties.items()])
    return _open(folder / "criteo")


def _open(folder: Path) -> Pair:
    rows = {}
    for name in ("guest", "host"):
        store = celu.open_store(folder / name / "store")
        rows[name] = celu.open_rows(store, store.inputs(), label=name == "guest")
    return rows


def _rounds(pair: Pair, codec: str, R: int, seed: int, target: float, most: int) -> float | None:
    """Rounds to the target, between two evaluations as a straight line has it; None if never."""
    job = celu.Job(
        seed=seed,
        rounds=most,
        batch_size=BATCH,
        hosts={"host": celu.HostTerms(z_width=WIDTH)},
        codec=codec,
        method=celu.Method(R={"guest": R, "host": 1}),
        optimizer=celu.Optimizer(name="adagrad", lr=LR, initial_accumulator=0.0),
        evaluation=celu.Evaluation(every=EVERY, target=target, rows=20_000),
    )
    torch.manual_seed(seed)

    def tower(rows: celu.Rows) -> Tower:
        columns = {name: t.shape[1] for name, t in rows.train.inputs.items()}
        return Tower(WIDTH, columns, rows.train.sizes, embedding_dim=8, hidden=(64,), init_std=0.03)

    guest, host = pair["guest"], pair["host"]
    result = celu.simulate(
        job,
        celu.Guest(
            WideDeepTop((WIDTH, WIDTH), hidden=(64,), init_std=0.03),
            celu.LOSSES["binary"],
            guest.train,
            guest.test,
            tower(guest),
        ),
        {"host": celu.Host(tower(host), host.train, host.test)},
    )
    scores = [0.5, *(evaluation["auc"] for evaluation in result.evaluations)]
    if scores[-1] < target:
        return None
    below, above = scores[-2:]
    return round((len(scores) - 2 + (target - below) / (above - below)) * EVERY, 1)


def _mean(runs: list[float | None]) -> float | None:
    reached = [run for run in runs if run is not None]
    return mean(reached) if len(reached) == len(runs) else None


def _ratio(runs: list[float | None], exact: list[float | None]) -> float | None:
    ours, theirs = _mean(runs), _mean(exact)
    return round(ours / theirs, 4) if ours is not None and theirs is not None else None


def _worst(ratios: dict[tuple[int, str], list[float]], codec: str) -> float | None:
    found = [ratio for R in (1, 3) for ratio in ratios.get((R, codec), [])]
    return max(found) if found else None
