"""Embedding tables that are sharded over the ranks of a party, row by row.

A lookup asks the owners for the rows of this rank's slice, each once. The gradient stays at the
rank until the step, and is then sent to the owners, which add what they receive in the order of the
ranks (`group`) and update their rows. So a sharded table has the bits of a replicated one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from celu.errors import ModelError
from celu.ranks.group import Group
from celu.ranks.own_rows import OwnRows, draw_rows, own_rows
from celu.ranks.owners import look_up


class ShardedEmbedding(nn.Embedding):
    """`torch.nn.Embedding(sparse=True)` of which this rank has the rows that it owns."""

    def __init__(self, own: OwnRows, ranks: Group, padding_idx: int | None = None) -> None:
        nn.Module.__init__(self)  # no table is allocated
        self.num_embeddings, self.embedding_dim = own.table_rows, own.shape[1]
        self.padding_idx = padding_idx
        self.max_norm, self.norm_type = None, 2.0
        self.scale_grad_by_freq, self.sparse = False, True
        self.weight = own
        self._ranks = ranks
        self._number = ranks.number_table()

    def forward(self, input: Tensor) -> Tensor:
        """The embeddings of ids of any shape; all ranks call this at the same time."""
        flat = input.detach().reshape(-1).cpu()
        rows, positions = torch.unique(flat, return_inverse=True)
        if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < self.num_embeddings:
            raise IndexError(
                f"expected ids of 0 to {self.num_embeddings - 1}, got some outside of that range"
            )
        own = cast(OwnRows, self.weight)
        found, where = look_up(self._ranks, own, rows, self._number)
        places = where[positions].to(own.device)
        found = found.to(own.device)
        padding = -1 if self.padding_idx is None else self.padding_idx
        z: Tensor = _Lookup.apply(own.leaf, found, places, input, padding)  # type: ignore[no-untyped-call]
        return z


class _Lookup(torch.autograd.Function):
    """Embeddings from the rows that were found, with the gradient of a whole table."""

    @staticmethod
    def forward(
        ctx: Any, leaf: Tensor, found: Tensor, places: Tensor, ids: Tensor, padding: int
    ) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table_rows, ctx.padding = leaf.shape[0], padding
        return found.index_select(0, places).reshape(*ids.shape, found.shape[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        (ids,) = ctx.saved_tensors
        of_table = torch.ops.aten.embedding_backward(
            gradient, ids, ctx.table_rows, ctx.padding, False, True
        )
        return of_table, None, None, None, None


def new_sharded(ranks: Group, rows: int, dim: int, std: float) -> ShardedEmbedding:
    """A table of normal random numbers, with the bits of the whole one, which is never in memory.

    `nn.Embedding` draws twice: its constructor's weights are replaced.
    """
    draw_rows(rows, dim, 1.0, 0, rows)
    drawn = draw_rows(rows, dim, std, ranks.rank, ranks.size)
    return ShardedEmbedding(own_rows(drawn, rows, ranks.rank, ranks.size), ranks)


def shard(ranks: Group, table: nn.Embedding) -> ShardedEmbedding:
    """A table whose other rows this rank forgets."""
    weights = table.weight.detach()
    own = own_rows(weights[ranks.rank :: ranks.size].clone(), len(weights), ranks.rank, ranks.size)
    return ShardedEmbedding(own, ranks, table.padding_idx)


def sparse_tables(modules: Mapping[str, nn.Module]) -> dict[str, nn.Embedding | nn.EmbeddingBag]:
    """The whole tables of modules, by name: layers with sparse gradients."""
    return {
        name: layer
        for name, layer in _layers(modules).items()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        and layer.sparse
        and not isinstance(layer, ShardedEmbedding)
    }


def check_shardable(modules: Mapping[str, nn.Module], name: str) -> nn.Embedding:
    """The table of this name; raises ModelError if it cannot be sharded."""
    layers = _layers(modules)
    layer = layers[name]
    if type(layer) is not nn.Embedding or layer.max_norm is not None:
        raise ModelError(
            f"model.shard: {name}: expected torch.nn.Embedding without max_norm, got "
            f"{type(layer).__name__}, which cannot be sharded; use that, or shard = false"
        )
    parameters = [p for other in layers.values() for p in other.parameters(recurse=False)]
    if sum(parameter is layer.weight for parameter in parameters) > 1:
        raise ModelError(
            f"model.shard: {name}: expected a table of its own, got one that another layer "
            "uses, too; use one layer twice, or shard = false"
        )
    return layer


def _layers(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    return {
        f"{which}.{name}": layer
        for which, module in modules.items()
        for name, layer in module.named_modules()
    }


def replace_layers(module: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> None:
    """Replace layers wherever the module uses them."""
    for layer in list(module.modules()):
        for name, child in list(layer._modules.items()):
            if child is not None and child in replaced:
                layer._modules[name] = replaced[child]
