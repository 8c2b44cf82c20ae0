"""Which embedding tables of a party are sharded over its ranks: all, none, or those too large.

A table of a built-in model, and one that a user's module makes with `new_embedding`, is never whole
in memory. Any other `nn.Embedding(sparse=True)` of a user's module is replaced once the module has
been built, and is whole until then. The bits are those of whole tables in each case.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.engine.device import find_device
from celu.errors import ConfigError
from celu.launch.memory_estimate import available_bytes
from celu.models.tower import new_embedding
from celu.ranks.embedding import (
    check_shardable,
    new_sharded,
    replace_layers,
    shard,
    sparse_tables,
)
from celu.ranks.environment import num_local_ranks
from celu.ranks.group import Group

_FLOAT_BYTES = 4
_STATES = {"sgd": 0, "adagrad": 1, "adam": 2, "adamw": 2}  # tensors of an optimizer for a weight


class Sharding:
    """Decides for one party, and makes its sharded tables. All ranks call it in the same order."""

    def __init__(self, ranks: Group, settings: PartySettings, job: Job, *, validates: bool) -> None:
        self._ranks = ranks
        self._wanted = settings.require_model().shard
        states = 1 + _STATES[job.optimizer.name]
        copies = 2 if job.auto else 1  # for checkpoints, and the savepoint of `auto`
        self._bytes_a_weight = _FLOAT_BYTES * (states * (1 + copies) + (1 if validates else 0))
        self._limit = _half_of_memory(find_device(settings.device))
        self.start()

    def start(self) -> None:
        """Start to build a party's modules: the tables of an earlier build do not count."""
        self._planned = 0  # bytes of the tables so far, if they are whole
        self._num_sharded = 0

    def new_embedding(self, rows: int, width: int, std: float) -> nn.Embedding:
        """A new table; see `celu.models.tower.new_embedding`."""
        if not self._applies(rows * width):
            return new_embedding(rows, width, std)
        return new_sharded(self._ranks, rows, width, std)

    def shard(self, modules: Mapping[str, nn.Module]) -> None:
        """Shard the tables of modules that `new_embedding` did not make.

        Raises ModelError for a table that would be and cannot, ConfigError if there is none.
        """
        if self._wanted is not False:
            weights = {id(t.weight): name for name, t in reversed(sparse_tables(modules).items())}
            for name, found in sparse_tables(modules).items():
                is_first = weights[id(found.weight)] == name  # of the layers that share a table
                if is_first and self._applies(found.weight.numel()):
                    table = check_shardable(modules, name)
                    module = modules[name.split(".", 1)[0]]
                    replace_layers(module, {table: shard(self._ranks, table)})
        if self._wanted and not self._num_sharded:
            raise ConfigError(
                "model.shard: expected a model with embedding tables, that is with "
                "torch.nn.Embedding(sparse=True), got one without; remove the setting"
            )

    def _applies(self, weights: int) -> bool:
        """Whether a table of this size is sharded, which all ranks decide together."""
        self._planned += weights * self._bytes_a_weight
        is_sharded = self._wanted
        if is_sharded is None:
            is_too_large = self._limit is not None and self._planned > self._limit
            is_sharded = bool(self._ranks.total(torch.tensor(float(is_too_large))) > 0)
        self._num_sharded += is_sharded
        return is_sharded


def _half_of_memory(device: torch.device) -> int | None:
    """Half of what this rank may use: rows and activations need some, too."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) // 2 // -(-num_local_ranks() // torch.cuda.device_count())
    available = available_bytes()
    return None if available is None else available // 2 // num_local_ranks()
