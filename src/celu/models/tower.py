"""A tower: embeddings of ids, concatenated with numbers, then linear layers without biases.

Both of the paper's models use it as their bottom, with the paper's constants. The paper draws
weights from N(0, 0.01). We read 0.01 as the variance: with it as the standard deviation, training
stalls at first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

Pooling = Literal["mean", "sum"]
NewEmbedding = Callable[[int, int, float], nn.Embedding]  # of rows, width, standard deviation


def new_embedding(rows: int, width: int, std: float) -> nn.Embedding:
    """A table of normal random numbers, whose gradient is sparse."""
    table = nn.Embedding(rows, width, sparse=True)
    nn.init.normal_(table.weight, std=std)
    return table


class Tower(nn.Module):
    """A bottom model for inputs of any names: those with `sizes` are ids, the others numbers.

    ReLU follows every layer; the last one (Z) only if `relu_z` is true, since an inner product of
    towers needs both signs. The fields of an input of ids share one embedding table, each with its
    own offset. The table's gradient is sparse: the cost of a step depends on the batch, not on the
    table. An input of bags, [B, columns, values], has the mean of the embeddings of a column's
    values, or their sum (`pooling`). `new_embedding` makes the tables.
    """

    def __init__(
        self,
        z_width: int,
        columns: Mapping[str, int],
        sizes: Mapping[str, Sequence[int]],
        embedding_dim: PositiveInt = 128,
        hidden: Sequence[PositiveInt] = (256,),
        init_std: NonNegativeFloat | None = 0.1,
        relu_z: bool = True,
        pooling: Pooling = "mean",
        new_embedding: NewEmbedding = new_embedding,
    ) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict()
        width = 0
        for name, num_columns in columns.items():
            if name in sizes:
                self.embeddings[name] = FieldEmbedding(
                    sizes[name], embedding_dim, init_std, pooling, new_embedding
                )
                width += num_columns * embedding_dim
            else:
                width += num_columns
        self.names = tuple(columns)
        self.layers = dense_layers([width, *hidden, z_width], init_std)
        if relu_z:
            self.layers.append(nn.ReLU())

    def forward(self, **inputs: Tensor) -> Tensor:
        """Z, [B, z_width]."""
        parts = [
            self.embeddings[name](inputs[name]) if name in self.embeddings else inputs[name]
            for name in self.names
        ]
        z: Tensor = self.layers(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])
        return z


def dense_layers(widths: Sequence[int], init_std: float | None) -> nn.Sequential:
    """Linear layers without biases, ReLU between them; weights have standard deviation `init_std`.

    None means torch's default initialisation, which scales with the width of a layer.
    """
    layers: list[nn.Module] = []
    for width, out in pairwise(widths):
        layer = nn.Linear(width, out, bias=False)
        if init_std is not None:
            nn.init.normal_(layer.weight, std=init_std)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _kernels(table: nn.Embedding, ids: Tensor) -> ModuleType | None:
    """The GPU kernel, if it can be used for this table and these ids."""
    kernels = _gpu_embedding() if ids.is_cuda else None
    return kernels if kernels is not None and kernels.fits(table) else None


@cache
def _gpu_embedding() -> ModuleType | None:
    try:
        from celu.models import gpu_embedding
    except ImportError:  # torch without Triton
        return None
    return gpu_embedding


class FieldEmbedding(nn.Module):
    """Embeddings of some columns of ids or bags, concatenated.

    Code 0 of a bag is no value and has no part in its mean or sum; one without values is 0.
    """

    offsets: Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        dim: int,
        init_std: float | None,
        pooling: Pooling = "mean",
        new_embedding: NewEmbedding = new_embedding,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("offsets", starts, persistent=False)
        self.table = new_embedding(sum(sizes), dim, 0.1 if init_std is None else init_std)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, columns * dim], from ids [B, columns] or bags [B, columns, values]."""
        if ids.dim() == 2:
            if (kernels := _kernels(self.table, ids)) is not None:
                found: Tensor = kernels.gather(self.table.weight, ids, self.offsets)
                return found
            z: Tensor = self.table(ids + self.offsets)
            return z.flatten(start_dim=1)
        is_value = (ids > 0).unsqueeze(3)
        z = (self.table(ids + self.offsets.unsqueeze(1)) * is_value).sum(dim=2)
        if self.pooling == "mean":
            z = z / is_value.sum(dim=2).clamp(min=1)
        return z.flatten(start_dim=1)
