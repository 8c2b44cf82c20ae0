"""`scripts/bench quality`: held-out AUC of the whole pipeline, from raw click data to a model.

For each dataset and each of several random splits: prepare both parties' stores, align them by
private set intersection between two processes, train, and evaluate the held-out rows once, at the
end. The data is the user's own copy of the public Criteo and Avazu sets, or samples of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from bench.report import BenchResult, Log
from bench.samples import FILES, VOCABULARY, prepare_sample, sample_file
from celu.config.job import Job, read_job
from celu.config.party import read_party
from celu.config.schema import Split
from celu.config.templates import SettingsTemplate, write_settings
from celu.launch.loading import load_party, read_datasets
from celu.party import Guest, Host
from celu.simulation import simulate
from celu.testing import align_parties, free_port, make_keys

PARTIES = ("guest", "host")
_WDL = SettingsTemplate(
    guest="guest",
    host="host",
    bottom='{ use = "wdl", embedding_dim = 8, hidden = [64], init_std = 0.03 }',
    top='{ use = "wdl", hidden = [64], init_std = 0.03 }',
    z_width=64,
)
_DSSM = SettingsTemplate(
    guest="guest",
    host="host",
    bottom='{ use = "dssm", embedding_dim = 16, hidden = [64] }',
    top='"dssm"',
    z_width=32,
)


@dataclass(frozen=True)
class Model:
    """A model and its training settings: one epoch, AdaGrad with initial accumulator 0."""

    name: str
    template: SettingsTemplate
    batch_size: int
    guest_R: int
    lr: float = 0.03


# The paper's model for the dataset comes first: its AUC is the figure.
MODELS = {
    "criteo": (Model("WDL", _WDL, 512, 3), Model("DSSM", _DSSM, 512, 1)),
    "avazu": (Model("DSSM", _DSSM, 256, 1), Model("WDL", _WDL, 256, 1)),
}

_BOTH_MODELS = MODELS["criteo"]


def bench_quality(log: Log, data: Path, splits: list[int]) -> BenchResult:
    """Measure on the files of `data`; raises DataError if one is missing."""
    for name in FILES:
        sample_file(data, name)
    torch.set_num_threads(1)
    result = BenchResult("quality", splits)
    for name in FILES:
        scores: dict[str, list[float]] = {model.name: [] for model in MODELS[name]}
        for split in splits:
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                rows = _prepare_and_align(folder, name, data, split)
                for model in MODELS[name]:
                    scores[model.name].append(_train(folder, model))
            shown = {model: round(values[-1], 4) for model, values in scores.items()}
            log(f"{name}, split {split}, {rows:,} training rows: {shown}")
        for model in MODELS[name]:
            result.rows.append(_row(name, model, scores[model.name]))
        paper, other = (model.name for model in MODELS[name])
        result.figures[f"{name}_auc"] = mean(scores[paper])
        result.figures[f"{name}_{other.lower()}_auc"] = mean(scores[other])
    result.notes.append(
        f"Means over {len(splits)} random splits, 90% for training, one epoch, AUC of all held-out "
        "rows at its end; prepared, aligned (PSI between two processes) and trained for each. "
        "Categories: a fitted vocabulary of the values in at least "
        f"{VOCABULARY.min_count} training rows. Criteo's numbers: log(x + 1)."
    )
    result.notes += [
        f"{m.name}: bottom {m.template.bottom}, top {m.template.top}" for m in _BOTH_MODELS
    ]
    return result


def _prepare_and_align(folder: Path, name: str, data: Path, split: int) -> int:
    """Write stores, settings, keys and alignments; return the number of training rows."""
    prepare_sample(folder, name, data, Split(seed=split))
    write_settings(folder, _WDL, port=free_port(), local=True, aligned=False)
    make_keys(folder, list(PARTIES))
    align_parties(folder, list(PARTIES), folder / "job.toml", timeout_s=1800)
    return read_datasets(read_party(folder / "guest" / "party.toml")).train.num_rows


def _train(folder: Path, model: Model) -> float:
    write_settings(folder, model.template, local=True, aligned=False)
    job = _job(read_job(folder / "job.toml"), model)
    parties = {
        name: load_party(read_party(folder / name / "party.toml"), job, folder) for name in PARTIES
    }
    guest, host = parties["guest"], parties["host"]
    assert isinstance(guest, Guest) and isinstance(host, Host)
    job = job.model_copy(
        update={
            "evaluation": job.evaluation.model_copy(
                update={"every": guest.train.num_rows // job.batch_size}
            )
        }
    )
    (last,) = simulate(job, guest, {"host": host}).evaluations
    return last["auc"]


def _job(job: Job, model: Model) -> Job:
    values: Mapping[str, Any] = {
        **job.model_dump(),
        "batch_size": model.batch_size,
        "rounds": None,
        "epochs": 1,
        "method": {"R": {"guest": model.guest_R, "host": 1}},
        "optimizer": {"name": "adagrad", "lr": model.lr, "initial_accumulator": 0.0},
    }
    return Job.model_validate(values)


def _row(name: str, model: Model, scores: list[float]) -> dict[str, Any]:
    return {
        "data": name,
        "model": model.name,
        "held-out AUC": mean(scores),
        "deviation": stdev(scores) if len(scores) > 1 else None,
        "batch": model.batch_size,
        "Z": model.template.z_width,
        "guest R": model.guest_R,
        "lr": model.lr,
        "by split": [round(score, 4) for score in scores],
    }
