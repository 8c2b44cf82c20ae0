"""`scripts/bench tabular`: federated models on tables, compared with pooled ones and LightGBM.

Each table is split by columns between a guest and a host. Everything is as a user gets it who
names a built-in family and a number of rounds, and sets nothing else. Families and the number of
rounds are chosen on validation rows; figures are of test rows, which nothing else sees.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

import celu
from bench.pooled import Scored, auc, train_lightgbm, train_pooled
from bench.report import BenchResult, Log
from bench.tables import Rows, TabularSet, check_sources, load_set
from celu.models.building import build_bottom, build_top

EVALUATIONS = 15  # of a run; the best one counts
Z_WIDTH = 64


@dataclass(frozen=True)
class Family:
    """A built-in bottom and top, with options where its defaults are the paper's.

    `job` has the settings of the contract that are not defaults.
    """

    name: str
    bottom: dict[str, Any]
    top: dict[str, Any]
    job: dict[str, Any]


FAMILIES = (
    # The options that `celu data flights` writes; the paper's widths are for millions of ids.
    Family(
        "wdl",
        {"embedding_dim": 8, "hidden": [64]},
        {"hidden": [64]},
        {"batch_size": 256, "rounds": 1050},
    ),
    Family("resnet", {}, {}, {"preset": "tabular", "rounds": 450}),
)


def bench_tabular(log: Log, data: Path | None, seeds: list[int]) -> BenchResult:
    """Measure every table that can be read; raises DataError or ConfigError for a package."""
    torch.set_num_threads(1)
    result = BenchResult("tabular", seeds)
    names = check_sources(data)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            table = load_set(name, data, Path(folder))
        row = _measure(log, table, seeds)
        result.rows.append(row)
        shown = ", ".join(f"{k} {v:.4f}" for k, v in row.items() if isinstance(v, float))
        log(f"{name}: {shown}")
    result.figures |= _figures(result.rows)
    result.notes += _notes(seeds)
    return result


def _measure(log: Log, table: TabularSet, seeds: Sequence[int]) -> dict[str, Any]:
    federated: dict[str, list[Scored]] = {}
    for family in FAMILIES:
        federated[family.name] = [_train_federated(table, family, seed) for seed in seeds]
        log(f"{table.name}: {family.name}: {federated[family.name]}")
    chosen = max(FAMILIES, key=lambda family: mean(s.validation for s in federated[family.name]))
    pooled = []
    for seed in seeds:
        guest, host, top = modules(table, chosen, seed)
        pooled.append(train_pooled(table, guest, host, top, _job(chosen, seed)))
    trees, settings = train_lightgbm(table, seeds[0])
    best = mean(s.test for s in federated[chosen.name])
    together = mean(s.test for s in pooled)
    return {
        "data": table.name,
        "rows": table.guest.train.num_rows,
        "family": chosen.name,
        "federated": best,
        "pooled": together,
        "LightGBM": trees.test,
        "federated less pooled": best - together,
        "gap to LightGBM": trees.test - best,
        **{name: mean(s.test for s in scores) for name, scores in federated.items()},
        "trees": settings,
    }


def _job(family: Family, seed: int) -> celu.Job:
    return celu.Job(
        seed=seed,
        hosts={"host": celu.HostTerms(z_width=Z_WIDTH)},
        evaluation=celu.Evaluation(every=family.job["rounds"] // EVALUATIONS),
        **family.job,
    )


def modules(table: TabularSet, family: Family, seed: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """New modules of the guest, the host and the top; they depend on the seed only."""
    torch.manual_seed(seed)

    def bottom(rows: Rows) -> nn.Module:
        return build_bottom(
            family.name,
            family.bottom,
            z_width=Z_WIDTH,
            columns={name: tensor.shape[1] for name, tensor in rows.train.inputs.items()},
            sizes=rows.train.sizes,
            examples=rows.train.examples(),
        )

    top = build_top(family.name, family.top, z_widths=[Z_WIDTH, Z_WIDTH])
    return bottom(table.guest), bottom(table.host), top


def _train_federated(table: TabularSet, family: Family, seed: int) -> Scored:
    guest_bottom, host_bottom, top = modules(table, family, seed)

    @celu.metric(higher_is_better=True)
    def validation_auc(scores: Any, labels: Any) -> float:
        return auc(scores[: table.first_test], labels[: table.first_test])

    @celu.metric(higher_is_better=True)
    def test_auc(scores: Any, labels: Any) -> float:
        return auc(scores[table.first_test :], labels[table.first_test :])

    guest = celu.Guest(
        bottom=guest_bottom,
        top=top,
        loss="binary",
        train=table.guest.train,
        test=table.guest.held_out,
        metrics=["auc", validation_auc, test_auc],
    )
    host = celu.Host(bottom=host_bottom, train=table.host.train, test=table.host.held_out)
    evaluations = celu.simulate(_job(family, seed), guest, {"host": host}).evaluations
    return max(Scored(found["validation_auc"], found["test_auc"]) for found in evaluations)


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    return {
        "federated_less_pooled_worst": min(row["federated less pooled"] for row in rows),
        "gap_to_lightgbm_worst": max(row["gap to LightGBM"] for row in rows),
        **{f"{row['data']}_auc": row["federated"] for row in rows},
    }


def _notes(seeds: Sequence[int]) -> list[str]:
    families = "; ".join(
        f"{family.name}: bottom {family.bottom}, top {family.top}, job {family.job}"
        for family in FAMILIES
    )
    return [
        f"AUC of test rows, mean of {len(seeds)} seeds. Validation rows choose the family, the "
        f"best of a run's {EVALUATIONS} evaluations, and the settings of LightGBM. Pooled: the "
        "modules of the chosen family in a plain loop, with the same optimizer and number of "
        "batches. LightGBM: on the joined table, one seed.",
        f"Z of width {Z_WIDTH}. {families}; all else is default.",
    ]
