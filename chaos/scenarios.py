"""The scenarios of the fault simulator: small jobs with small models and synthetic rows."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from celu.config.job import Job
from celu.data.dataset import Dataset
from celu.party import Guest, Host

_ROWS, _TEST_ROWS, _COLUMNS, _WIDTH = 40, 8, 3, 4
_DEFAULTS: dict[str, Any] = {
    "hosts": 1,
    "rounds": 3,
    "batch_size": 4,
    "codec": "fp32",
    "optimizer": "sgd",
    "weighting": "cosine",
    "dropout": 0.0,
    "depth": 1,
    "R": 1,
    "W": 1,
    "choices": [],
    "evaluation": {"every": 3, "metric": "loss"},
    "order": {},
    "privacy": {},
}
_BLOCKS = {"shuffle": "blocks", "block_rows": 4, "window_blocks": 3}
_CHOICES = [
    {"round": 0, "depth": 2, "R": 1, "W": 1, "codec": "fp32"},
    {"round": 2, "depth": 1, "R": 2, "W": 2, "codec": "int8"},
    {"round": 4, "depth": 3, "R": 2, "W": 3, "codec": "fp32"},
]
# Overrides of the defaults; `every` is the checkpoint interval. Each has just enough rounds for
# what it covers: a full pipeline, a full workset, the end of an epoch (40 rows are ten batches, or
# five of 8), and one round after each.
_SCENARIOS: list[dict[str, Any]] = [
    {"every": 1},
    {"every": 2, "R": 2, "W": 2},
    {"every": 1, "depth": 2, "optimizer": "adagrad"},
    {"every": 3, "depth": 2, "R": 2, "W": 3, "codec": "int8", "weighting": "none", "rounds": 4},
    {"every": 2, "depth": 3, "R": 2, "W": 3, "codec": "4bit", "rounds": 4},
    {"every": 4, "depth": 4, "W": 2, "codec": "int8", "rounds": 6, "batch_size": 8},
    {"every": 4, "depth": 4, "R": 3, "W": 4, "weighting": "none", "dropout": 0.2, "rounds": 5},
    {"every": 3, "R": {"guest": 3, "host": 1}, "W": 3, "optimizer": "adagrad", "rounds": 4},
    {"every": 2, "hosts": 2},
    {"every": 1, "hosts": 2, "depth": 2, "R": 2, "W": 2, "weighting": "none"},
    {"every": 3, "depth": 3, "optimizer": "adam", "rounds": 4, "dropout": 0.2},
    {"every": 2, "depth": 2, "R": {"guest": 1, "host": 2}, "W": 4, "rounds": 5},
    {"every": 2, "choices": _CHOICES, "rounds": 7},
    {"every": 3, "depth": 2, "R": 2, "W": 3, "order": _BLOCKS, "rounds": 6, "batch_size": 8},
    # Enough checkpoints that the others must refuse to follow a party which loses its own.
    {"every": 1, "rounds": 6},
    {"every": 1, "rounds": 6, "hosts": 2, "R": 2, "W": 2},
    {"every": 2, "rounds": 8, "depth": 2, "R": 2, "W": 3, "optimizer": "adagrad"},
    # Stops at its first evaluation: any model reaches this target.
    {"every": 2, "rounds": 6, "evaluation": {"every": 3, "metric": "loss", "target": 100.0}},
    {"every": 2, "depth": 2, "R": 3, "W": 2, "rounds": 5, "privacy": {"label_epsilon": 1.0}},
]
NUM_SCENARIOS = len(_SCENARIOS)


class Bottom(nn.Linear):
    """One layer; with dropout, if any, so that a step's own random draws matter."""

    def __init__(self, dropout: float) -> None:
        super().__init__(_COLUMNS, _WIDTH, bias=False)
        self._dropout = dropout

    def forward(self, numbers: Tensor) -> Tensor:
        """Z, [B, width]."""
        if self._dropout and self.training:
            numbers = nn.functional.dropout(numbers, self._dropout)
        return torch.tanh(super().forward(numbers))


class Top(nn.Linear):
    """One linear layer over all Z."""

    def __init__(self, parts: int) -> None:
        super().__init__(parts * _WIDTH, 1, bias=False)

    def forward(self, *z: Tensor) -> Tensor:
        """A prediction for each row, [B]."""
        return super().forward(torch.cat(z, dim=1)).squeeze(1)


@dataclass(frozen=True)
class Scenario:
    """A job and its parties before the first round."""

    number: int
    job: Job
    _guest: Guest
    _hosts: dict[str, Host]

    def guest(self) -> Guest:
        """The guest, with a copy of its modules."""
        guest = self._guest
        assert guest.bottom is not None  # all parties of all scenarios have one
        return Guest(
            top=_copy(guest.top),
            loss=guest.loss,
            train=guest.train,
            test=guest.test,
            bottom=_copy(guest.bottom),
            label_key=guest.label_key,
        )

    def host(self, name: str) -> Host:
        """A host, with a copy of its module."""
        host = self._hosts[name]
        return Host(bottom=_copy(host.bottom), train=host.train, test=host.test)

    @property
    def names(self) -> list[str]:
        """The names of all parties, the guest's first."""
        return _names(self.job)


@cache
def scenario(number: int) -> Scenario:
    """One of `NUM_SCENARIOS`."""
    row = {**_DEFAULTS, **_SCENARIOS[number]}
    hosts = ["host", "other"][: row["hosts"]]
    job = Job.model_validate(
        {
            "seed": number,
            "batch_size": row["batch_size"],
            "rounds": row["rounds"],
            "hosts": {name: {"z_width": _WIDTH} for name in hosts},
            "method": {key: row[key] for key in ("depth", "R", "W", "weighting")},
            "codec": row["codec"],
            "optimizer": {"name": row["optimizer"], "lr": 0.1},
            "evaluation": row["evaluation"],
            "order": row["order"],
            "privacy": row["privacy"],
            "choices": row["choices"],
            "checkpoint": {"every": row["every"]},
        }
    )
    rng = torch.Generator().manual_seed(number)
    numbers = {n: torch.randn(_ROWS + _TEST_ROWS, _COLUMNS, generator=rng) for n in _names(job)}
    labels = torch.stack([x[:, 0] for x in numbers.values()]).sum(0)
    is_private = job.privacy.label_epsilon is not None
    labels = (labels > 0).float() if is_private else labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        top = Top(1 + len(hosts))
        train, test = _datasets(numbers[job.guest], labels)
        bottom = Bottom(row["dropout"])
        guest = Guest(
            bottom=bottom,
            top=top,
            loss="binary" if is_private else "regression",
            train=train,
            test=test,
            label_key=b"the key of the labels",
        )
        parties = {}
        for name in hosts:
            bottom = Bottom(row["dropout"])
            train, test = _datasets(numbers[name], None)
            parties[name] = Host(bottom=bottom, train=train, test=test)
    return Scenario(number, job, guest, parties)


def _copy(layer: nn.Module) -> nn.Module:
    """A layer with copied weights; faster than a deep copy, and these layers have nothing else."""
    copied = copy.copy(layer)
    copied._parameters = {
        name: None if weight is None else nn.Parameter(weight.detach().clone())
        for name, weight in layer._parameters.items()
    }
    return copied


def _names(job: Job) -> list[str]:
    return [job.guest, *job.hosts]


def _datasets(numbers: Tensor, labels: Tensor | None) -> tuple[Dataset, Dataset]:
    slices = (slice(None, _ROWS), slice(_ROWS, None))
    train, test = (
        Dataset(
            {"numbers": numbers[rows].clone()}, None if labels is None else labels[rows].clone()
        )
        for rows in slices
    )
    return train, test
