"""celu: train one neural network across companies that may not share their data.

    guest = celu.Guest(bottom=net, top=top, loss="binary", train=celu.Dataset({"x": x}, y), test=t)
    host = celu.Host(bottom=other, train=..., test=...)
    job = celu.Job(rounds=500, hosts={"weather": 64})
    result = celu.simulate(job, guest, {"weather": host}, link="wan-300")
    result.metrics["auc"]

Over the network, each party calls `celu.run(job, guest, "party.toml")`, or runs the command
`celu run party.toml --job job.toml`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celu.version import __version__

if TYPE_CHECKING:
    from celu.checkpoint.generations import Checkpoints
    from celu.config.job import (
        AlignmentTerms,
        Checkpoint,
        Codecs,
        Evaluation,
        HostTerms,
        Job,
        Method,
        Order,
        read_job,
    )
    from celu.config.link import LinkSettings, find_link
    from celu.config.optimizer import Optimizer
    from celu.data.clicks import write_clicks
    from celu.data.dataset import Dataset
    from celu.data.flights import write_flights
    from celu.data.memory_map import StoreDatasets, open_datasets
    from celu.data.store import Store, open_store
    from celu.errors import CeluError
    from celu.events import Event
    from celu.launch.training import run
    from celu.metrics.own import Metric, metric
    from celu.models.losses import LOSSES, Loss
    from celu.models.residual import ResidualTop, ResidualTower
    from celu.models.tops import InnerProductTop, WideDeepTop
    from celu.models.tower import Tower
    from celu.party import Guest, Host
    from celu.result import Result
    from celu.scores.evaluation import evaluate
    from celu.scores.result import ScoreEvaluation
    from celu.serving.export import export_run as export
    from celu.serving.model import Model
    from celu.serving.model_folder import load_model
    from celu.serving.predicting import Predictions, predict
    from celu.serving.trained import models_of
    from celu.simulation import simulate
    from celu.tracking.tracker import Tracker
    from celu.workset.table import Entry

__all__ = [
    "LOSSES",
    "AlignmentTerms",
    "CeluError",
    "Checkpoint",
    "Checkpoints",
    "Codecs",
    "Dataset",
    "Entry",
    "Evaluation",
    "Event",
    "Guest",
    "Host",
    "HostTerms",
    "InnerProductTop",
    "Job",
    "LinkSettings",
    "Loss",
    "Method",
    "Metric",
    "Model",
    "Optimizer",
    "Order",
    "Predictions",
    "ResidualTop",
    "ResidualTower",
    "Result",
    "ScoreEvaluation",
    "Store",
    "StoreDatasets",
    "Tower",
    "Tracker",
    "WideDeepTop",
    "__version__",
    "evaluate",
    "export",
    "find_link",
    "load_model",
    "metric",
    "models_of",
    "open_datasets",
    "open_store",
    "predict",
    "read_job",
    "run",
    "simulate",
    "write_clicks",
    "write_flights",
]

# Imported when first used: commands and worker processes that do not need torch start fast.
_HOMES = {
    "checkpoint.generations": ("Checkpoints",),
    "config.job": (
        *("AlignmentTerms", "Checkpoint", "Codecs", "Evaluation", "HostTerms"),
        *("Job", "Method", "Order", "read_job"),
    ),
    "config.link": ("LinkSettings", "find_link"),
    "config.optimizer": ("Optimizer",),
    "data.clicks": ("write_clicks",),
    "data.dataset": ("Dataset",),
    "data.flights": ("write_flights",),
    "data.memory_map": ("StoreDatasets", "open_datasets"),
    "data.store": ("Store", "open_store"),
    "errors": ("CeluError",),
    "events": ("Event",),
    "launch.training": ("run",),
    "metrics.own": ("Metric", "metric"),
    "models.losses": ("LOSSES", "Loss"),
    "models.residual": ("ResidualTop", "ResidualTower"),
    "models.tops": ("InnerProductTop", "WideDeepTop"),
    "models.tower": ("Tower",),
    "party": ("Guest", "Host"),
    "scores.evaluation": ("evaluate",),
    "scores.result": ("ScoreEvaluation",),
    "serving.export": ("export",),
    "serving.model": ("Model",),
    "serving.model_folder": ("load_model",),
    "serving.predicting": ("Predictions", "predict"),
    "serving.trained": ("models_of",),
    "result": ("Result",),
    "simulation": ("simulate",),
    "tracking.tracker": ("Tracker",),
    "workset.table": ("Entry",),
}
_NAMES_THERE = {"export": "export_run"}  # where it has another name at home
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'celu' has no attribute {name!r}")
    value = getattr(import_module(f"celu.{_HOME[name]}"), _NAMES_THERE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
