"""Numbers that act as ids: an embedding of each of their values that recurs.

All people of a household have its exact expenditure, and all flights of a day its number in the
year. Rows with such a value have more in common than rows with a slightly larger one, which no
function of its size can say: bins of it hold many households. So these values are embedded like
ids. The vectors start at 0, and a value that does not recur in the training rows has none.

Most numbers are not ids, and vectors for their values would only memorise the training rows.
Ids are found as approximate functional dependencies are (Huhtala et al., "TANE", The
Computer Journal 1999): rows with the same value agree in another, coarser column, and rows with
neighbouring values do not. Nothing here sees labels, nor another party's columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from celu.models.tower import NewEmbedding, new_embedding

_AGREE = 0.9  # the share of rows with the same value that agree in the other column, at least
_CHANCE = 0.5  # that of rows with neighbouring values, at most
_COARSER = 2  # a column with more than half as many values may be a copy in another unit


class RecurringValues(nn.Module):
    """Vectors of the recurring values of some columns of numbers, to add to their embeddings.

    `examples` are training rows of these columns, [N, columns], and `others` those of all columns
    that their values may depend on; without examples, as for a model whose weights are loaded next,
    nothing recurs. At most `limit` values get vectors: those of the most rows.
    """

    values: Tensor
    starts: Tensor

    def __init__(
        self,
        columns: int,
        limit: int,
        dim: int,
        examples: Tensor | None = None,
        others: Tensor | None = None,
        new_embedding: NewEmbedding = new_embedding,
    ) -> None:
        super().__init__()
        found = [torch.zeros(0)] * columns
        if examples is not None and others is not None:
            found = _most_frequent(_ids(examples.cpu(), others.cpu()), limit)
        sizes = [len(values) for values in found]
        self.register_buffer("values", torch.cat([*found, torch.zeros(limit - sum(sizes))]))
        self.register_buffer("starts", torch.tensor([0, *sizes]).cumsum(0))
        self.table = new_embedding(limit + 1, dim, 0.0)  # the last row is of no value

    def forward(self, numbers_BC: Tensor) -> Tensor:
        """[B, columns * dim], from numbers [B, columns]."""
        # A binary search among the column's values, of operations that exported models have too.
        limit = len(self.values)
        end_C = self.starts[1:]
        at_BC = (self.starts[:-1] - 1).expand(numbers_BC.shape)
        for power in reversed(range(limit.bit_length())):
            next_BC = at_BC + 2**power
            is_below = self.values[next_BC.clamp_max(limit - 1)] <= numbers_BC
            at_BC = torch.where((next_BC < end_C) & is_below, next_BC, at_BC)
        is_in_column = at_BC >= self.starts[:-1]
        is_known = is_in_column & (self.values[at_BC.clamp_min(0)] == numbers_BC)
        vectors_BCD: Tensor = self.table(torch.where(is_known, at_BC, limit))
        return (vectors_BCD * is_known.unsqueeze(-1)).flatten(start_dim=1)


def _ids(examples_NC: Tensor, others_NK: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The sorted recurring values of each column and their rows; none if they are not ids."""
    distinct_K = torch.tensor([len(other.unique()) for other in others_NK.T])
    found = []
    for column_N in examples_NC.T:
        values, counts = column_N.unique(return_counts=True)
        is_kept = counts > 1
        coarser_NK = others_NK[:, distinct_K * _COARSER <= len(values)]
        if not _determines(column_N, coarser_NK):
            is_kept = torch.zeros_like(is_kept)
        found.append((values[is_kept], counts[is_kept]))
    return found


def _determines(column_N: Tensor, others_NK: Tensor) -> bool:
    """Whether rows with the same value agree in another column, unlike those beside them."""
    sorted_N, order_N = column_N.sort(stable=True)
    is_same = sorted_N.diff() == 0
    if not is_same.any() or is_same.all():
        return False
    agree = (others_NK[order_N].diff(dim=0) == 0).float()
    # Every value counts once: one that fills in for missing numbers would outweigh all others.
    _, rows_V = sorted_N.unique_consecutive(return_counts=True)
    pairs_V = rows_V[rows_V > 1] - 1
    weights = (1 / pairs_V).repeat_interleave(pairs_V).unsqueeze(1) / len(pairs_V)
    same_K, beside_K = (agree[is_same] * weights).sum(dim=0), agree[~is_same].mean(dim=0)
    return bool(((same_K >= _AGREE) & (beside_K <= _CHANCE)).any())


def _most_frequent(columns: Sequence[tuple[Tensor, Tensor]], limit: int) -> list[Tensor]:
    """The values of all columns that are among the `limit` with the most rows, sorted."""
    counts = torch.cat([counts for _, counts in columns])
    is_kept = torch.zeros(len(counts), dtype=torch.bool)
    is_kept[counts.argsort(descending=True, stable=True)[:limit]] = True
    kept = is_kept.split([len(counts) for _, counts in columns])
    return [values[own] for (values, _), own in zip(columns, kept, strict=True)]
