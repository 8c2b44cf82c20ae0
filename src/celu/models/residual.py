"""Residual networks for tables: a bottom and a top of one family.

The blocks are those of Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data"
(NeurIPS 2021), with layer normalisation in place of batch normalisation: a row's output does not
depend on the other rows of its batch, so cached batches, predictions of a few rows and training
agree. Ids and numbers are embedded column by column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from celu.models.number_embedding import NumberEmbedding
from celu.models.tower import FieldEmbedding, NewEmbedding, Pooling, new_embedding

Share = Annotated[float, Field(ge=0, lt=1)]
_ID_STD = 0.1  # of the initial embeddings of ids


class ResidualBlock(nn.Module):
    """x + f(x), with f: normalisation, a layer twice as wide, ReLU, dropout, a layer."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, [B, width]."""
        change: Tensor = self.layers(x)
        return x + change


def residual_layers(
    inputs: int, width: int, blocks: int, dropout: float, outputs: int
) -> nn.Sequential:
    """A layer, residual blocks, normalisation, ReLU and the last layer."""
    return nn.Sequential(
        nn.Linear(inputs, width),
        *(ResidualBlock(width, dropout) for _ in range(blocks)),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


class ResidualTower(nn.Module):
    """A bottom model for inputs of any names: those with `sizes` are ids, the others numbers.

    `examples` are training rows of the inputs: the bins of numbers are fitted on them. Bags become
    the mean or the sum of their embeddings (`pooling`), as in `Tower`; `new_embedding` makes
    the tables of ids.
    """

    def __init__(
        self,
        z_width: int,
        columns: Mapping[str, int],
        sizes: Mapping[str, Sequence[int]],
        examples: Mapping[str, Tensor] | None = None,
        embedding_dim: PositiveInt = 8,
        bins: PositiveInt = 256,
        width: PositiveInt = 64,
        blocks: NonNegativeInt = 1,
        dropout: Share = 0.0,
        pooling: Pooling = "mean",
        new_embedding: NewEmbedding = new_embedding,
    ) -> None:
        super().__init__()
        self.names = tuple(columns)
        self.embeddings = nn.ModuleDict()
        for name, num_columns in columns.items():
            if name in sizes:
                embedding: nn.Module = FieldEmbedding(
                    sizes[name], embedding_dim, _ID_STD, pooling, new_embedding
                )
            else:
                rows = None if examples is None else examples[name]
                embedding = NumberEmbedding(num_columns, bins, embedding_dim, rows)
            self.embeddings[name] = embedding
        embedded = embedding_dim * sum(columns.values())
        self.layers = residual_layers(embedded, width, blocks, dropout, z_width)

    def forward(self, **inputs: Tensor) -> Tensor:
        """Z, [B, z_width]."""
        parts = [self.embeddings[name](inputs[name]) for name in self.names]
        z: Tensor = self.layers(torch.cat(parts, dim=1))
        return z


class ResidualTop(nn.Module):
    """A residual network of all Z and of their products, which let the parties' rows interact.

    The products are those of projections of Z, summed over all pairs of parties, as in He and Chua,
    "Neural Factorization Machines" (SIGIR 2017).
    """

    def __init__(
        self,
        z_widths: Sequence[int],
        outputs: PositiveInt = 1,
        width: PositiveInt = 64,
        blocks: NonNegativeInt = 1,
        dropout: Share = 0.0,
    ) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(z_width, width) for z_width in z_widths)
        self.layers = residual_layers(sum(z_widths) + width, width, blocks, dropout, outputs)

    def forward(self, *zs: Tensor) -> Tensor:
        """[B, outputs]."""
        projected = [projection(z) for projection, z in zip(self.projections, zs, strict=True)]
        products = torch.zeros_like(projected[0])
        total = projected[0]
        for other in projected[1:]:
            products = products + total * other
            total = total + other
        output: Tensor = self.layers(torch.cat([*zs, products], dim=1))
        return output
