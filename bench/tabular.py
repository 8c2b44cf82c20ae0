"""`scripts/bench tabular`: federated models on tables, compared with pooled ones and LightGBM.

Each table is split by columns between a guest and a host. Everything is as a user gets it who
names a built-in family, a number of epochs and a patience, and sets nothing else. Validation rows
choose the family and end training; figures are of test rows, which nothing else sees.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

import celu
from bench.pooled import Scored, train_lightgbm, train_pooled
from bench.report import BenchResult, Log
from bench.tables import Rows, TabularSet, check_sources, load_set
from celu.engine.device import find_device
from celu.models.building import build_bottom, build_top

EPOCHS = 14
EVALUATIONS = 40  # of a run that nothing ends early; the best one counts
PATIENCE = 10
Z_WIDTH = 128


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
        {"batch_size": 256},
    ),
    Family("resnet", {}, {}, {"preset": "tabular"}),
)


def bench_tabular(
    log: Log,
    data: Path | None,
    seeds: list[int],
    workers: int = 1,
    only: Sequence[str] = (),
    device: str = "cpu",
) -> BenchResult:
    """Measure every table that can be read, or those of `only`; networks train on `device`.

    Raises DataError or ConfigError for a package, ConfigError for an unknown table or device.
    """
    result = BenchResult("tabular", seeds)
    names = check_sources(data, only)
    find_device(device)
    measure = partial(_measure, data=data, seeds=seeds, device=device)
    if workers == 1:
        result.rows += _logged(log, map(measure, names))
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            result.rows += _logged(log, pool.map(measure, names))
    result.figures |= _figures(result.rows)
    result.notes += _notes(seeds, device)
    return result


def _logged(log: Log, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        shown = ", ".join(f"{k} {v:.4f}" for k, v in row.items() if isinstance(v, float))
        log(f"{row['data']}: {shown}")
        yield row


def _measure(name: str, data: Path | None, seeds: Sequence[int], device: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        table = load_set(name, data, Path(folder))
    federated = {
        family.name: [_train_federated(table, family, seed, device) for seed in seeds]
        for family in FAMILIES
    }
    chosen = max(FAMILIES, key=lambda family: mean(s.validation for s in federated[family.name]))
    pooled = [_train_pooled(table, chosen, seed, device) for seed in seeds]
    forests = [train_lightgbm(table, seed) for seed in seeds]
    best = mean(s.test for s in federated[chosen.name])
    together = mean(s.test for s in pooled)
    trees = mean(scored.test for scored, _ in forests)
    return {
        "data": table.name,
        "rows": table.guest.train.num_rows,
        "family": chosen.name,
        "federated": best,
        "pooled": together,
        "LightGBM": trees,
        "federated less pooled": best - together,
        "gap to LightGBM": trees - best,
        **{name: mean(s.test for s in scores) for name, scores in federated.items()},
        "trees": forests[0][1],
    }


def _job(table: TabularSet, family: Family, seed: int) -> celu.Job:
    hosts = {"host": celu.HostTerms(z_width=Z_WIDTH)}
    job = celu.Job(seed=seed, hosts=hosts, epochs=EPOCHS, **family.job)
    rounds = job.num_rounds(table.guest.train.num_rows // job.batch_size)
    every = max(1, rounds // EVALUATIONS)
    return job.model_copy(update={"evaluation": celu.Evaluation(every=every, patience=PATIENCE)})


def _train_pooled(table: TabularSet, family: Family, seed: int, device: str) -> Scored:
    guest, host, top = (module.to(device) for module in modules(table, family, seed))
    return train_pooled(table, guest, host, top, _job(table, family, seed))


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


def _train_federated(table: TabularSet, family: Family, seed: int, device: str) -> Scored:
    guest_bottom, host_bottom, top = (m.to(device) for m in modules(table, family, seed))
    target = torch.device(device)
    mine, theirs = table.guest.held_out.to(target), table.host.held_out.to(target)
    first_test = table.first_test
    guest = celu.Guest(
        bottom=guest_bottom,
        top=top,
        loss="binary",
        train=table.guest.train.to(target),
        validation=_some(mine, slice(0, first_test)),
        test=_some(mine, slice(first_test, None)),
        metrics=["auc"],
    )
    host = celu.Host(
        bottom=host_bottom,
        train=table.host.train.to(target),
        validation=_some(theirs, slice(0, first_test)),
        test=_some(theirs, slice(first_test, None)),
    )
    result = celu.simulate(_job(table, family, seed), guest, {"host": host})
    return Scored(max(found["auc"] for found in result.evaluations), result.test["auc"])


def _some(dataset: celu.Dataset, rows: slice) -> celu.Dataset:
    batch = dataset.take(rows)
    return celu.Dataset(batch.inputs, batch.labels, dataset.sizes, classes=dataset.classes)


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    return {
        "federated_less_pooled_worst": min(row["federated less pooled"] for row in rows),
        "gap_to_lightgbm_worst": max(row["gap to LightGBM"] for row in rows),
        **{f"{row['data']}_auc": row["federated"] for row in rows},
    }


def _notes(seeds: Sequence[int], device: str) -> list[str]:
    families = "; ".join(
        f"{family.name}: bottom {family.bottom}, top {family.top}, job {family.job}"
        for family in FAMILIES
    )
    return [
        f"AUC of test rows, mean of {len(seeds)} seeds. Validation rows choose the family, the "
        f"best of {EVALUATIONS} evaluations of a run, which ends after {PATIENCE} without an "
        "improvement, and the settings of LightGBM. Pooled: the modules of the chosen family in a "
        "plain loop with the same optimizer, order of batches, patience and maximum number of the "
        "guest's updates. LightGBM: on the joined table.",
        f"Networks trained on {device}, trees on cpu.",
        f"Z of width {Z_WIDTH}, at most {EPOCHS} epochs. {families}; all else is default.",
        "Validation rows of flights, diamonds, movies and vietnam were looked at when the defaults "
        "of resnet were chosen (bins, offsets, width, dropout, learning rate, the limits of the "
        "rule for recurring values, the cross layer); so were test rows of all five tables, in "
        "earlier versions of this result.",
    ]
