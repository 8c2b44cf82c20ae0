"""`celu bench rounds`: rounds to the same AUC on the flights data.

Vanilla's learning rate is tuned on a grid first, with the paper's optimizer, and used unchanged
for all methods, as the paper does. Beside it stands the strongest vanilla found on a grid that
includes the accumulator: what local updates have to beat to be worth it.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import torch

import celu
from celu.bench.flights_pair import FlightsPair, flights_job
from celu.bench.report import BenchResult, Say

TARGET = 0.74
EVERY = 10
PAPER_RATES = (0.1, 0.2, 0.5, 1.0, 2.0)
STRONG_RATES = (0.01, 0.03, 0.1)
MAX_ROUNDS = 1500

VANILLA = celu.Method(R=1)
CELU = celu.Method(W=5, R=5, xi=60)
FEDBCD = celu.Method(W=1, R=5, weighting="none")
GUEST_ONLY = celu.Method(W=5, R={"guest": 3, "host": 1}, xi=60)


def bench_rounds(say: Say, seeds: list[int]) -> BenchResult:
    """Tune, then compare; a run that does not get there counts as none."""
    torch.set_num_threads(1)
    pair = FlightsPair.load()
    result = BenchResult("rounds", seeds)

    def rounds(name: str, method: celu.Method, optimizer: celu.Optimizer) -> float | None:
        runs = [_rounds_to_target(pair, seed, method, optimizer) for seed in seeds]
        reached = [r for r in runs if r is not None]
        average = mean(reached) if len(reached) == len(runs) else None
        result.rows.append(
            {
                "method": name,
                "accumulator": optimizer.initial_accumulator or 0.0,
                "lr": optimizer.lr,
                f"rounds to {TARGET}": average,
                "by seed": runs,
            }
        )
        say(f"{name}, lr {optimizer.lr}, accumulator {optimizer.initial_accumulator or 0}: {runs}")
        return average

    paper = _tune(lambda lr: rounds("vanilla", VANILLA, _adagrad(lr, 0.1)), PAPER_RATES)
    strong = _tune(lambda lr: rounds("vanilla", VANILLA, _adagrad(lr, 0.0)), STRONG_RATES)
    tuned = _adagrad(paper[0], 0.1)
    celu_rounds = rounds("CELU W=5 R=5 xi=60", CELU, tuned)
    rounds("FedBCD R=5", FEDBCD, tuned)
    rounds("CELU W=5 R=5 xi=60", CELU, _adagrad(strong[0], 0.0))
    rounds("guest only W=5 R=3 xi=60", GUEST_ONLY, _adagrad(strong[0], 0.0))
    result.figures["celu_over_vanilla_rounds"] = _ratio(celu_rounds, paper[1])
    result.figures["celu_over_strongest_vanilla_rounds"] = _ratio(celu_rounds, strong[1])
    result.notes.append(
        f"Rounds (mean over seeds) to AUC {TARGET} on all held-out flights, looked at every "
        f"{EVERY} rounds; batch 1024, Z 64. Learning rate tuned for vanilla: {paper[0]} with "
        "the paper's "
        f"accumulator of 0.1, {strong[0]} with 0. The first ratio compares in the paper's regime; "
        "the second sets CELU in the paper's regime against the strongest vanilla."
    )
    return result


def _adagrad(lr: float, accumulator: float) -> celu.Optimizer:
    return celu.Optimizer(name="adagrad", lr=lr, initial_accumulator=accumulator)


def _tune(
    measure: Callable[[float], float | None], rates: tuple[float, ...]
) -> tuple[float, float | None]:
    """The rate with the fewest rounds, and those rounds."""
    measured = {lr: measure(lr) for lr in rates}
    best = min(rates, key=lambda lr: measured[lr] or float("inf"))
    return best, measured[best]


def _rounds_to_target(
    pair: FlightsPair, seed: int, method: celu.Method, optimizer: celu.Optimizer
) -> int | None:
    job = flights_job(
        seed=seed,
        rounds=MAX_ROUNDS,
        method=method,
        optimizer=optimizer,
        evaluation=celu.Evaluation(every=EVERY, target=TARGET),
    )
    last = pair.simulate(job).evaluations[-1]
    return int(last["round"]) if last["auc"] >= TARGET else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else round(a / b, 3)
