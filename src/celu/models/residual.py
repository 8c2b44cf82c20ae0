"""Residual networks for tables: a bottom and a top of one family.

The blocks are those of Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data"
(NeurIPS 2021), with layer normalisation in place of batch normalisation: a row's output does not
depend on the other rows of its batch, so cached batches, predictions of a few rows and training
agree. Ids and numbers are embedded column by column. A cross layer of these embeddings comes first,
since a day and an hour together may say what neither says alone.

A network has several members (`celu.models.members`): predictions of their own, with nearly all
weights shared. At each party they start from different signs of the embeddings; their parts of Z
stand side by side in it; the top scales what each gets, and has an output layer for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from celu.errors import ModelError
from celu.models.number_embedding import NumberEmbedding
from celu.models.recurring_values import RecurringValues
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


def residual_layers(inputs: int, width: int, blocks: int, dropout: float) -> nn.Sequential:
    """A layer, residual blocks, normalisation and ReLU."""
    return nn.Sequential(
        nn.Linear(inputs, width),
        *(ResidualBlock(width, dropout) for _ in range(blocks)),
        nn.LayerNorm(width),
        nn.ReLU(),
    )


class CrossLayer(nn.Module):
    """x * (W x + b) + x, so that columns multiply.

    The first cross layer of Wang et al., "DCN V2: Improved Deep & Cross Network" (WWW 2021), of
    full rank. A tower has this one only, where the paper stacks several.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, [B, width]."""
        factors: Tensor = self.linear(x)
        return x * factors + x


class MemberLinear(nn.Module):
    """A layer of its own for each member."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5  # as in nn.Linear
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, outputs).uniform_(-bound, bound))

    def forward(self, x_BMI: Tensor) -> Tensor:
        """[B, members, outputs]."""
        return torch.einsum("bmi,mio->bmo", x_BMI, self.weight) + self.bias


def _width_of_member(z_width: int, members: int) -> int:
    if z_width % members:
        raise ModelError(
            f"resnet: expected a width of Z that is a multiple of its {members} members, got "
            f"{z_width}; change z_width in the contract, or members at all parties"
        )
    return z_width // members


class ResidualTower(nn.Module):
    """A bottom model for inputs of any names: those with `sizes` are ids, the others numbers.

    `examples` are training rows of the inputs: the bins of numbers are fitted on them, and up to
    `recurring` values of numbers that act as ids are embedded, too. Bags become the mean
    or the sum of their embeddings (`pooling`), as in `Tower`; `new_embedding` makes the tables of
    ids and of values. `cross` puts a cross layer before the residual network. Each of the members
    has an equal part of Z, so its width must be a multiple of their number; ModelError otherwise.
    """

    def __init__(
        self,
        z_width: int,
        columns: Mapping[str, int],
        sizes: Mapping[str, Sequence[int]],
        examples: Mapping[str, Tensor] | None = None,
        embedding_dim: PositiveInt = 16,
        bins: PositiveInt = 128,
        recurring: NonNegativeInt = 8192,
        members: PositiveInt = 8,
        width: PositiveInt = 128,
        blocks: NonNegativeInt = 1,
        cross: bool = True,
        dropout: Share = 0.0,
        pooling: Pooling = "mean",
        new_embedding: NewEmbedding = new_embedding,
    ) -> None:
        super().__init__()
        self.members = members
        self.names = tuple(columns)
        self.embeddings = nn.ModuleDict()
        self.recurring = nn.ModuleDict()
        for name, num_columns in columns.items():
            if name in sizes:
                embedding: nn.Module = FieldEmbedding(
                    sizes[name], embedding_dim, _ID_STD, pooling, new_embedding
                )
            else:
                rows = None if examples is None else examples[name]
                embedding = NumberEmbedding(num_columns, bins, embedding_dim, rows)
                if recurring:
                    self.recurring[name] = RecurringValues(
                        num_columns, recurring, embedding_dim, rows, _flat(examples), new_embedding
                    )
            self.embeddings[name] = embedding
        embedded = embedding_dim * sum(columns.values())
        self.cross = CrossLayer(embedded) if cross else nn.Identity()
        self.signs = nn.Parameter(torch.randint(0, 2, (members, embedded)) * 2.0 - 1)
        self.layers = residual_layers(embedded, width, blocks, dropout)
        self.layers.append(nn.Linear(width, _width_of_member(z_width, members)))

    def forward(self, **inputs: Tensor) -> Tensor:
        """Z, [B, z_width]."""
        parts = [self._embed(name, inputs[name]) for name in self.names]
        embedded: Tensor = self.cross(torch.cat(parts, dim=1))
        z_BMD: Tensor = self.layers(embedded.unsqueeze(1) * self.signs)
        return z_BMD.flatten(start_dim=1)

    def _embed(self, name: str, rows: Tensor) -> Tensor:
        embedded: Tensor = self.embeddings[name](rows)
        return embedded + self.recurring[name](rows) if name in self.recurring else embedded


def _flat(examples: Mapping[str, Tensor] | None) -> Tensor | None:
    """All columns of ids and numbers, side by side."""
    if examples is None:
        return None
    return torch.cat([rows.cpu().double() for rows in examples.values() if rows.dim() == 2], dim=1)


class ResidualTop(nn.Module):
    """A residual network of all Z and of their products, which let the parties' rows interact.

    The products are those of projections of Z, summed over all pairs of parties, as in He and Chua,
    "Neural Factorization Machines" (SIGIR 2017). `members` must be that of all parties' bottoms.
    """

    def __init__(
        self,
        z_widths: Sequence[int],
        outputs: PositiveInt = 1,
        members: PositiveInt = 8,
        width: PositiveInt = 128,
        blocks: NonNegativeInt = 1,
        dropout: Share = 0.0,
    ) -> None:
        super().__init__()
        self.members = members
        widths = [_width_of_member(z_width, members) for z_width in z_widths]
        inputs = sum(widths) + width
        self.projections = nn.ModuleList(nn.Linear(own, width) for own in widths)
        self.scales = nn.Parameter(torch.ones(members, inputs))
        self.layers = residual_layers(inputs, width, blocks, dropout)
        self.last = MemberLinear(members, width, outputs)

    def forward(self, *zs: Tensor) -> Tensor:
        """[B, outputs], the mean of the members; in training mode, if there are several, each."""
        members = [z.unflatten(1, (self.members, -1)) for z in zs]
        projected = [projection(z) for projection, z in zip(self.projections, members, strict=True)]
        products = torch.zeros_like(projected[0])
        total = projected[0]
        for other in projected[1:]:
            products = products + total * other
            total = total + other
        joined = torch.cat([*members, products], dim=-1) * self.scales
        output_BMO: Tensor = self.last(self.layers(joined))
        if self.training and self.members > 1:
            return output_BMO
        return output_BMO.mean(dim=1)
