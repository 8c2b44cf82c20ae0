"""`scripts/bench privacy`: what each defence costs, and what the audit still finds of the labels.

A guest and a host train on the Criteo sample under each defence, for one epoch and for five, in
which the host receives dZ of every row five times. The guest's audit attacks what the host
received, and the host's audit decodes its columns from Z with noise and without.
`privacy_at_scale` measures how the cost of randomized labels falls with the number of rows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from bench.memoized_noise import MemoizedMarvell
from bench.parallel_runs import SavedRuns, run_all
from bench.privacy_runs import (
    BATCH,
    OPTIMIZER,
    WIDTH,
    Defence,
    Pair,
    audit_options,
    open_sample,
    read_sample,
    train,
)
from bench.report import BenchResult, Log
from celu.audit.result import Audit
from celu.config.privacy import GaussianNoise, MarvellNoise
from celu.events import Event, RoundDone
from celu.privacy.accountant import gaussian_epsilon, gaussian_mu

EPOCHS = (1, 5)
NONE = Defence("none")
TWIN = Defence("twin, epsilon 1", 1.0)
SMALL_EPSILON = Defence("twin, epsilon 0.41", 0.41)
STRONG_MARVELL = Defence("Marvell, power 8", dz_noise=MarvellNoise(name="marvell", power=8.0))
# Half of the rows of dZ are longer than this clip; each number of a row gets noise of 0.4.
GAUSSIAN = Defence(
    "Gaussian on dZ, clip 0.2, x 2", dz_noise=GaussianNoise(clip=0.2, noise_multiplier=2.0)
)
DEFENCES = (
    NONE,
    Defence("Marvell, power 1", dz_noise=MarvellNoise(name="marvell", power=1.0)),
    STRONG_MARVELL,
    GAUSSIAN,
    Defence("twin, epsilon 2.2", 2.2),
    TWIN,
    SMALL_EPSILON,
)
# Local steps of the host, which repeat the dZ that a defence has changed.
VANILLA = "vanilla"
METHODS: dict[str, dict[str, Any]] = {
    VANILLA: {"R": 1},
    "cached": {"R": {"guest": 1, "host": 3}, "W": 5, "weighting": "cosine"},
    "compensated": {"R": {"guest": 1, "host": 3}, "W": 5, "weighting": "compensated"},
}
METHOD_DEFENCES = (NONE, STRONG_MARVELL, GAUSSIAN, TWIN, SMALL_EPSILON)
METHOD_SHARE = 0.5  # of an epoch
# Local steps pay where the optimizer's own are too small: measured at the best learning rate
# without a defence, and at a quarter of it.
SMALL_LR = OPTIMIZER.lr / 4
LEARNING_RATES = (OPTIMIZER.lr, SMALL_LR)
# What a host can do about its columns: a narrow Z, or noise on it. Half of the rows of Z are longer
# than this clip.
Z_DEFENCES = (
    Defence("Z of 64"),
    Defence("Z of 16", width=16),
    *(
        Defence(
            f"Gaussian on Z, clip 1, x {m:g}", z_noise=GaussianNoise(clip=1.0, noise_multiplier=m)
        )
        for m in (0.1, 0.3, 1.0)
    ),
)
DELTA = 1e-6
CPU_ROUNDS, CPU_TURNS = 60, 3


def bench_privacy(
    log: Log, data: Path, seeds: Sequence[int], workers: int = 1, out: Path | None = None
) -> BenchResult:
    """Measure all but the cost at scale; raises DataError if the sample is missing.

    Finished runs are saved in the folder `out`, and are not repeated.
    """
    torch.set_num_threads(1)
    result = BenchResult("privacy", list(seeds))
    saved = SavedRuns(None if out is None else out / "runs.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        pair = read_sample(data, Path(folder))
        cpu = saved.get("twin_cpu")  # first, alone on the machine
        if cpu is None:
            cpu = _cpu_figures(log, pair)
            saved.add("twin_cpu", cpu)
        one, five = EPOCHS
        # The longest first, so that no worker ends up with one while the others are idle.
        leak_runs = [
            _Leak(d, epochs, seed) for epochs, d, seed in product((five, one), DEFENCES, seeds)
        ]
        memo_runs = [_Memoized(seed) for seed in seeds]
        method_runs = [
            _MethodRun(d, name, lr, seed)
            for lr, d, name, seed in product(LEARNING_RATES, METHOD_DEFENCES, METHODS, seeds)
        ]
        default_runs = [_DefaultRun(d, seed) for d, seed in product((NONE, TWIN), seeds)]
        z_runs = [_Columns(d, seed) for d, seed in product(Z_DEFENCES, seeds)]
        runs: list[Callable[[Pair], Any]] = [
            *memo_runs,
            *leak_runs,
            *default_runs,
            *z_runs,
            *method_runs,
        ]
        open_pair = partial(open_sample, Path(folder)) if workers > 1 else lambda: pair
        found = run_all(log, runs, open_pair, workers, saved)
    seconds = min(found[run]["seconds"] for run in leak_runs if run.epochs == five)
    leaks = {
        (d, epochs): _mean_row(
            {"defence": d.name, "epochs": epochs},
            [found[run] for run in leak_runs if (run.defence, run.epochs) == (d, epochs)],
        )
        for epochs in EPOCHS
        for d in DEFENCES
    }
    methods = _method_rows(pair, {run: found[run] for run in method_runs})
    z_rows = [
        _mean_row(
            {"defence": d.name, "epochs": one, "epsilon of a row's Z": _epsilon(d, one)},
            [found[run] for run in z_runs if run.defence == d],
        )
        for d in Z_DEFENCES
    ]
    result.rows += [*leaks.values(), *z_rows, *methods]
    default = {d: mean(found[r] for r in default_runs if r.defence == d) for d in (NONE, TWIN)}
    first, last = leaks[TWIN, one], leaks[TWIN, five]
    result.figures |= {
        "none_own": leaks[NONE, one]["own AUC"],
        "eps1_own": first["own AUC"],
        "eps1_tpr1": first["own TPR"],
        "eps1_cost": leaks[NONE, one]["model AUC"] - first["model AUC"],
        "eps1_cost_default": default[NONE] - default[TWIN],
        "five_over_one_own": last["own AUC"] / first["own AUC"],
        "marvell_memo_found": mean(found[run] for run in memo_runs),
        **cpu,
        "audit_s": seconds,
    }
    result.figures |= {
        f"{name}_{method}_gain": row[f"{method} gain"]
        for row in methods
        for name, defence in (("none", NONE), ("eps1", TWIN))
        for method in METHODS
        if row["lr"] == SMALL_LR and row["defence"] == defence.name and method != VANILLA
    }
    result.notes += _notes(pair, seeds)
    return result


@dataclass(frozen=True)
class _Leak:
    """A run with an audit: its AUC, and the best of each attack."""

    defence: Defence
    epochs: int
    seed: int

    def __str__(self) -> str:
        return f"{self.defence.name}, {self.epochs} epochs, seed {self.seed}"

    def __call__(self, pair: Pair) -> dict[str, float]:
        audits = {"guest": audit_options(self.seed, self.epochs)}
        rounds = self.epochs * pair.rounds_per_epoch
        trained = train(pair, self.defence, self.seed, rounds, audits=audits)["guest"]
        assert trained.audit is not None  # it was asked for
        return {"model AUC": trained.metrics["auc"], **_attacks(trained.audit)}


@dataclass(frozen=True)
class _Memoized:
    """The AUC of the network on noise that is drawn once for each row, over five epochs."""

    seed: int

    def __str__(self) -> str:
        return f"memoized Marvell, seed {self.seed}"

    def __call__(self, pair: Pair) -> float:
        options = audit_options(self.seed, EPOCHS[-1])
        broken = MemoizedMarvell(options.settings, options.key)
        rounds = EPOCHS[-1] * pair.rounds_per_epoch
        trained = train(pair, NONE, self.seed, rounds, audits={"guest": broken})["guest"]
        assert trained.audit is not None
        return _attacks(trained.audit)["network"]


@dataclass(frozen=True)
class _Columns:
    """A run of one epoch whose host decodes its columns from Z."""

    defence: Defence
    seed: int

    def __str__(self) -> str:
        return f"{self.defence.name}, seed {self.seed}"

    def __call__(self, pair: Pair) -> dict[str, float]:
        audits = {"host": audit_options(self.seed, 1)}
        trained = train(pair, self.defence, self.seed, pair.rounds_per_epoch, audits=audits)
        audit = trained["host"].audit
        assert audit is not None  # it was asked for
        shares = [column.one or 0.0 for column in audit.columns]
        return {
            "model AUC": trained["guest"].metrics["auc"],
            "worst column": max(shares),
            "mean column": mean(shares),
        }


def _epsilon(defence: Defence, exposures: int) -> float | None:
    """What the accountant says of a row's own Z."""
    if defence.z_noise is None:
        return None
    return gaussian_epsilon(gaussian_mu(defence.z_noise.noise_multiplier, exposures), DELTA)


@dataclass(frozen=True)
class _MethodRun:
    """The AUC after some rounds with a method, under a defence."""

    defence: Defence
    method: str
    lr: float
    seed: int

    def __str__(self) -> str:
        return f"{self.defence.name}, {self.method}, lr {self.lr}, seed {self.seed}"

    def __call__(self, pair: Pair) -> float:
        optimizer = OPTIMIZER.model_copy(update={"lr": self.lr})
        method = METHODS[self.method]
        rounds = _method_rounds(pair)
        trained = train(pair, self.defence, self.seed, rounds, method=method, optimizer=optimizer)
        return trained["guest"].metrics["auc"]


@dataclass(frozen=True)
class _DefaultRun:
    """The AUC after one epoch with the default method, of the rows that `twin_cpu` is of."""

    defence: Defence
    seed: int

    def __str__(self) -> str:
        return f"{self.defence.name}, default method, seed {self.seed}"

    def __call__(self, pair: Pair) -> float:
        rows = pair.swapped()
        trained = train(rows, self.defence, self.seed, rows.rounds_per_epoch, method={})
        return trained["guest"].metrics["auc"]


def _attacks(audit: Audit) -> dict[str, float]:
    """The best of an audit's views for each attack: one exposure, their average, all of them."""

    def best(name: str, figure: str) -> float:
        attacks = [attack for attack in audit.labels[0].attacks if attack.name == name]
        return max(float(getattr(attack.rows, figure)) for attack in attacks)

    return {
        **{name: best(name, "auc") for name in ("norm", "linear", "network")},
        "own AUC": best("network", "own_auc"),
        "own TPR": best("network", "own_tpr"),
        "seconds": audit.seconds,
    }


def _mean_row(row: dict[str, Any], found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The row of the table for one defence and length: means over the seeds."""
    return row | {
        key: mean(values[key] for values in found) for key in found[0] if key != "seconds"
    }


def _method_rounds(pair: Pair) -> int:
    return round(METHOD_SHARE * pair.rounds_per_epoch)


def _method_rows(pair: Pair, found: Mapping[_MethodRun, float]) -> list[dict[str, Any]]:
    """The AUC with each method, and what it gains over vanilla, under each defence."""
    rows: list[dict[str, Any]] = []
    for lr, defence in product(LEARNING_RATES, METHOD_DEFENCES):
        aucs = {
            name: mean(
                auc
                for run, auc in found.items()
                if (run.lr, run.defence, run.method) == (lr, defence, name)
            )
            for name in METHODS
        }
        row = {"defence": defence.name, "lr": lr, "rounds": _method_rounds(pair), **aucs}
        row |= {f"{name} gain": aucs[name] - aucs[VANILLA] for name in METHODS if name != VANILLA}
        rows.append(row)
    return rows


def _cpu_figures(log: Log, pair: Pair) -> dict[str, float]:
    """Processor time of rounds with the twin over those without, at both parties and the guest."""
    figures = {}
    for suffix, rows, method in (
        ("", pair.swapped(), {}),
        ("_light", pair, {}),
        ("_vanilla", pair.swapped(), METHODS[VANILLA]),
    ):
        turns = [
            [_cpu_of_rounds(rows, defence, method) for defence in (TWIN, NONE)]
            for _ in range(CPU_TURNS)
        ]
        for which, name in ((0, f"twin_cpu{suffix}"), (1, f"twin_cpu{suffix}_guest")):
            twin, none = (min(turn[side][which] for turn in turns) for side in (0, 1))
            figures[name] = twin / none
            log(f"{name}: {figures[name]:.3f}")
    return figures


def _cpu_of_rounds(pair: Pair, defence: Defence, method: Mapping[str, Any]) -> tuple[float, float]:
    """Processor seconds of both parties, and of the guest alone."""
    seconds = {"guest": 0.0, "host": 0.0}

    def of(party: str) -> Callable[[Event], None]:
        def note(event: Event) -> None:
            if isinstance(event, RoundDone):  # totals since the start of training
                seconds[party] = event.seconds - event.waited_s

        return note

    train(
        pair,
        defence,
        1,
        CPU_ROUNDS,
        method=method,
        link="wan-300",
        timer=time.thread_time,
        callbacks=[of("guest")],
        host_callbacks={"host": [of("host")]},
    )
    return sum(seconds.values()), seconds["guest"]


def _notes(pair: Pair, seeds: Sequence[int]) -> list[str]:
    train_rows, test_rows = pair.guest.train.num_rows, pair.guest.test.num_rows
    return [
        f"Criteo sample: {train_rows:,} training rows, AUC of {test_rows:,} test rows, means of "
        f"{len(seeds)} seeds. WDL, Z {WIDTH}, batch {BATCH}, AdaGrad with initial accumulator 0, "
        f"lr {OPTIMIZER.lr}, no local steps; settings were chosen without a defence and are the "
        "same for all. Attacks: the guest's audit of 20,000 rows, half of whose labels the "
        "attacker knows; the figures are of the other half, the best of an attack's views of "
        "the exposures. Own: the network, comparing rows of similar forecasts. TPR: at 1% FPR.",
        "Marvell's power is a multiple of the squared distance of the classes' means in a batch. "
        "marvell_memo_found: the network on Marvell's noise of power 8, drawn once for each row "
        "and added to the recorded dZ of five epochs without a defence.",
        "Columns: the share of the host's columns that a decoder of Z recovers in the host's own "
        "audit of 20,000 rows after one epoch, of the worst column and the mean of all. Epsilon "
        f"of a row's Z: at delta {DELTA:g}, given the host's weights; what these have learned of "
        "the row is not covered.",
        "Methods: the host makes local steps (R=3, W=5) from cached dZ, the guest none; AUC after "
        f"{METHOD_SHARE:.0%} of an epoch, at that learning rate and at a quarter of it. "
        "The *_gain figures are those at a quarter.",
        "twin_cpu: processor time of a round at both parties with the default method, where the "
        "guest has the ids, the heavier columns. The twin's step takes the place of one of the "
        "guest's two local steps. *_guest: at the guest alone; *_light: where the guest has the "
        "numbers; *_vanilla: without local steps. eps1_cost_default: the AUC that epsilon 1 costs "
        "after one epoch, with the method and the rows of twin_cpu. audit_s: the fastest audit of "
        "20,000 rows with five exposures, in seconds.",
    ]
