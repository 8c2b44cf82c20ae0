"""celu: train one neural network across companies that may not share their data.

    guest = celu.Guest(bottom=net, top=top, loss="binary", train=celu.Dataset({"x": x}, y), test=...)
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
        Checkpoint,
        Codecs,
        Evaluation,
        HostTerms,
        Job,
        Method,
        Optimizer,
        Order,
    )
    from celu.config.link import LinkSettings, find_link
    from celu.data.dataset import Dataset
    from celu.data.memory_map import StoreDatasets, open_datasets
    from celu.data.store import Store, open_store
    from celu.errors import CeluError
    from celu.events import Event
    from celu.launch.training import run
    from celu.models.losses import LOSSES, Loss
    from celu.party import Guest, Host
    from celu.session import Result
    from celu.simulation import simulate

__all__ = [
    "LOSSES",
    "CeluError",
    "Checkpoint",
    "Checkpoints",
    "Codecs",
    "Dataset",
    "Evaluation",
    "Event",
    "Guest",
    "Host",
    "HostTerms",
    "Job",
    "LinkSettings",
    "Loss",
    "Method",
    "Optimizer",
    "Order",
    "Result",
    "Store",
    "StoreDatasets",
    "__version__",
    "find_link",
    "open_datasets",
    "open_store",
    "run",
    "simulate",
]

# Imported when first used: commands and worker processes that do without torch start at once.
_HOMES = {
    "checkpoint.generations": ("Checkpoints",),
    "config.job": (
        *("Checkpoint", "Codecs", "Evaluation", "HostTerms"),
        *("Job", "Method", "Optimizer", "Order"),
    ),
    "config.link": ("LinkSettings", "find_link"),
    "data.memory_map": ("StoreDatasets", "open_datasets"),
    "data.store": ("Store", "open_store"),
    "data.dataset": ("Dataset",),
    "errors": ("CeluError",),
    "events": ("Event",),
    "launch.training": ("run",),
    "models.losses": ("LOSSES", "Loss"),
    "party": ("Guest", "Host"),
    "session": ("Result",),
    "simulation": ("simulate",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'celu' has no attribute {name!r}")
    value = getattr(import_module(f"celu.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
