"""Rows of sharded tables on their way between the ranks that use them and those that own them.

All ranks call these functions at the same time. What travels are the rows of one slice, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from celu.errors import ModelError
from celu.ranks.gradients import sum_sparse
from celu.ranks.own_rows import OwnRows, Route, num_own


class Ranks(Protocol):
    """What this module needs of a `Group`."""

    rank: int
    size: int

    def exchange(self, collective: Callable[..., Any], *arguments: Any) -> None:
        """Run a collective."""
        ...


def look_up(ranks: Ranks, own: OwnRows, rows: Tensor, table: int) -> tuple[Tensor, Tensor]:
    """The weights of some rows of a table, which are ascending, from the ranks that own them.

    Returns them in main memory in the order in which they arrive, and the place of each row.
    `table` is the table's number; raises ModelError where the ranks look into different tables.
    """
    own.route = None
    order, asked = _by_owner(ranks, rows)
    wanted = _exchange_counts(ranks, asked, table)
    ids = _exchange_rows(ranks, rows[order] // ranks.size, asked, wanted)
    own.route = Route(rows, order, asked, ids, wanted)
    weights = own.detach().index_select(0, ids.to(own.device)).cpu()
    found = _exchange_rows(ranks, weights, wanted, asked)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return found, places


def follows_route(gradient: Tensor, own: OwnRows) -> bool:
    """Whether a gradient has the rows of the latest lookup, as it has after one lookup a step."""
    return own.route is not None and torch.equal(gradient._indices()[0].cpu(), own.route.rows)


def sum_owned(ranks: Ranks, gradient: Tensor | None, own: OwnRows, *, follow_route: bool) -> Tensor:
    """The gradient of the rows of this rank: what all ranks have for them, in their order.

    `gradient` is that of this rank's slice, for rows of the whole table. `follow_route`: those of
    all ranks follow the route of their latest lookup.
    """
    rows = torch.empty(0, dtype=torch.int64)
    values = torch.empty((0, *own.shape[1:]), dtype=own.dtype)
    if gradient is not None:
        rows, values = gradient._indices()[0].cpu(), gradient._values().cpu()
    if follow_route:
        assert own.route is not None
        _, order, sent, all_rows, received = own.route
    else:
        order, sent = _by_owner(ranks, rows)
        received = _exchange_counts(ranks, sent, 0)
        all_rows = _exchange_rows(ranks, rows[order] // ranks.size, sent, received)
    all_values = _exchange_rows(ranks, values.index_select(0, order), sent, received)
    parts = all_rows.split(received), all_values.split(received)
    return sum_sparse(*parts, own.shape).to(own.device)


def gather_rows(ranks: Ranks, own: OwnRows, start: int, stop: int) -> Tensor:
    """A block of a table at the first rank: that of each rank's rows from `start` to `stop`.

    Other ranks get nothing useful.
    """
    part = own.detach()[start:stop].cpu().contiguous()
    if ranks.rank > 0:
        if len(part):
            ranks.exchange(dist.send, part, 0)
        return part
    rows = min(own.table_rows - start * ranks.size, (stop - start) * ranks.size)
    whole = torch.empty((rows, *own.shape[1:]), dtype=own.dtype)
    whole[:: ranks.size] = part
    for rank in range(1, ranks.size):
        received = torch.empty((num_own(rows, rank, ranks.size), *own.shape[1:]), dtype=own.dtype)
        if len(received):
            ranks.exchange(dist.recv, received, rank)
            whole[rank :: ranks.size] = received
    return whole


def _by_owner(ranks: Ranks, rows: Tensor) -> tuple[Tensor, list[int]]:
    """An order of rows by the rank that owns them, and how many each has."""
    owners = rows % ranks.size
    parts = [(owners == rank).nonzero()[:, 0] for rank in range(ranks.size)]
    return torch.cat(parts), [len(part) for part in parts]


def _exchange_counts(ranks: Ranks, counts: Sequence[int], table: int) -> list[int]:
    """How many rows each rank has for this one; `counts` are those for each of them."""
    sent = torch.tensor([[count, table] for count in counts])
    received = torch.empty_like(sent)
    ranks.exchange(dist.all_to_all_single, received, sent)
    if bool((received[:, 1] != table).any()):
        raise ModelError(
            "model.shard: expected all ranks to look into the same embedding tables in the same "
            "order, got others; a forward pass must not choose tables by its rows"
        )
    found: list[int] = received[:, 0].tolist()
    return found


def _exchange_rows(
    ranks: Ranks, tensor: Tensor, sent: Sequence[int], received: Sequence[int]
) -> Tensor:
    """All-to-all of a tensor's rows, with the numbers of rows to and from each rank."""
    found = torch.empty((sum(received), *tensor.shape[1:]), dtype=tensor.dtype)
    ranks.exchange(dist.all_to_all_single, found, tensor, list(received), list(sent))
    return found
