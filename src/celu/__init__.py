"""celu: train one neural network across companies that may not share their data.

    job = celu.Job(rounds=500, hosts={"weather": celu.HostTerms(z_width=64)})
    guest = celu.Guest(top=..., loss=celu.LOSSES["binary"], bottom=..., train=..., test=...)
    host = celu.Host(bottom=..., train=..., test=...)
    result = celu.simulate(job, guest, {"weather": host})

Across machines the same job runs as `celu run party.toml --job job.toml` at each party.
"""

from celu.config.job import Evaluation, HostTerms, Job, Method, Optimizer
from celu.data.table import Table, read_table
from celu.errors import CeluError
from celu.models.losses import LOSSES, Loss
from celu.party import Guest, Host
from celu.session import Result
from celu.simulate import simulate
from celu.version import __version__

__all__ = [
    "LOSSES",
    "CeluError",
    "Evaluation",
    "Guest",
    "Host",
    "HostTerms",
    "Job",
    "Loss",
    "Method",
    "Optimizer",
    "Result",
    "Table",
    "__version__",
    "read_table",
    "simulate",
]
