"""The rows of an embedding table that one rank owns, of a table that is sharded over all ranks.

Row i of the table belongs to rank i % size, where it is row i // size: ranks own equal numbers of
rows of every column of ids. Where the table is whole, so that a model of one process has it, its
rows are in their own order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_BLOCK = 1 << 20  # numbers that are drawn at a time
_CHUNK = 16  # numbers that torch draws together: blocks of whole chunks have the bits of one draw


class Route(NamedTuple):
    """Which rows went where in a lookup, so that their gradient goes the same way back."""

    rows: Tensor  # of this rank's slice, each once and ascending
    order: Tensor  # of them by owner
    asked: list[int]  # how many of them each rank owns
    own_rows: Tensor  # of this rank that all ranks asked for, as it numbers them
    wanted: list[int]  # how many of those each rank asked for


class OwnRows(nn.Parameter):
    """The weights of the rows that this rank owns; see `own_rows`."""

    table_rows: int  # of the whole table
    rank: int
    num_ranks: int
    route: Route | None = None  # of the latest lookup
    _leaf: Tensor | None = None

    @property
    def leaf(self) -> Tensor:
        """Where autograd leaves the gradient: it has the shape of the whole table and no memory.

        So the gradient of a slice is the one that a whole table has.
        """
        leaf = self._leaf
        if leaf is None or leaf.device != self.device:
            zero = torch.zeros((), dtype=self.dtype, device=self.device)
            leaf = self._leaf = zero.expand(self.table_rows, *self.shape[1:]).requires_grad_()
        return leaf

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnRows:
        if id(self) not in memo:
            memo[id(self)] = own_rows(self.data.clone(), self.table_rows, self.rank, self.num_ranks)
        copied: OwnRows = memo[id(self)]
        return copied


def own_rows(weights: Tensor, table_rows: int, rank: int, size: int) -> OwnRows:
    """The rows that a rank owns, as a parameter."""
    parameter = OwnRows(weights)
    parameter.table_rows, parameter.rank, parameter.num_ranks = table_rows, rank, size
    return parameter


def leaf_of(parameter: nn.Parameter) -> Tensor:
    """The tensor whose `grad` is the gradient of a slice."""
    return parameter.leaf if isinstance(parameter, OwnRows) else parameter


def num_own(table_rows: int, rank: int, size: int) -> int:
    """How many rows of a table a rank owns."""
    return len(range(rank, table_rows, size))


def draw_rows(rows: int, dim: int, std: float, rank: int = 0, size: int = 1) -> Tensor:
    """The rows of a rank, of a table of normal random numbers that is drawn in blocks.

    They have the bits of one call of `torch.nn.init.normal_` for the whole table, and leave the
    generator as it does.
    """
    own = torch.empty(num_own(rows, rank, size), dim)
    block = max(_CHUNK, _BLOCK // max(1, dim) // _CHUNK * _CHUNK)
    start = 0
    while start < rows:
        # A block of less than one chunk would be drawn in another way.
        stop = rows if rows - start < block + _CHUNK else start + block
        drawn = torch.empty(stop - start, dim).normal_(0.0, std)
        first = (rank - start) % size
        index = (start + first) // size
        part = drawn[first::size]
        own[index : index + len(part)] = part
        start = stop
    return own


def sharded_names(modules: Mapping[str, nn.Module | None]) -> dict[str, OwnRows]:
    """The sharded tables of some modules; each key starts with its module's name."""
    return {
        f"{which}.{name}": parameter
        for which, module in modules.items()
        if module is not None
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if isinstance(parameter, OwnRows)
    }


def blocks_of(parameter: OwnRows, bytes_: int = 1 << 22) -> Iterator[tuple[int, int]]:
    """Ranges of each rank's rows; a rank's part of a block has about this number of bytes."""
    width = max(1, parameter[:1].numel()) * parameter.element_size()
    step, most = max(1, bytes_ // width), num_own(parameter.table_rows, 0, parameter.num_ranks)
    for start in range(0, most, step):
        yield start, min(start + step, most)
