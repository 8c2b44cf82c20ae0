"""The report of a round: an event whose numbers a device may still compute."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from celu.engine.readback import Readback
from celu.events import SIMILARITY_QUANTILES, RoundDone
from celu.workset.workset import TableSummary, Workset

_MAX_TABLE = 64  # entries; larger tables are not reported


class RoundReport:
    """The report of a round, without the numbers that a device still computes."""

    def __init__(self, fields: dict[str, Any], losses: list[Tensor], workset: Workset) -> None:
        self._fields = fields
        similarity_B = workset.similarity_B
        self._num_rows = 0 if similarity_B is None else len(similarity_B)
        self._table: TableSummary | None = None
        if workset.table.R > 1 and workset.table.W <= _MAX_TABLE:
            self._table = TableSummary(workset.table)
        self._has_loss = bool(losses)
        self._readback = Readback(
            [
                *([torch.stack(losses).mean()] if losses else []),
                *([] if similarity_B is None else [_around_quantiles(similarity_B)]),
                *(self._table.medians if self._table else []),
            ]
        )

    @property
    def is_ready(self) -> bool:
        """Whether `event` need not wait."""
        return self._readback.is_ready

    def wait(self) -> None:
        """Wait for the numbers of this report, and so for those of earlier ones."""
        self._readback.wait()

    def event(self) -> RoundDone:
        """The event; waits for its numbers."""
        numbers = deque(self._readback.values())
        fields = self._fields
        if self._has_loss:
            (fields["loss"],) = numbers.popleft()
        if self._num_rows:
            found = _interpolate(numbers.popleft(), self._num_rows)
            fields["similarity_quantiles"] = [round(q, 4) for q in found]
        if self._table is not None:
            fields["table"] = self._table.rows(numbers.popleft() if numbers else [])
        return RoundDone(**fields)


def _around_quantiles(x_B: Tensor) -> Tensor:
    """The two ordered values around each of `SIMILARITY_QUANTILES`."""
    return x_B.float().sort().values.index_select(0, _places(len(x_B), x_B.device))


@lru_cache(maxsize=16)
def _places(num_rows: int, device: torch.device) -> Tensor:
    """Where these values are. Cached: copying them to a GPU waits for it."""
    below = [int(q * (num_rows - 1)) for q in SIMILARITY_QUANTILES]
    return torch.tensor([i for p in below for i in (p, min(p + 1, num_rows - 1))], device=device)


def _interpolate(around: list[float], num_rows: int) -> list[float]:
    """The quantiles, by linear interpolation; `torch.quantile` is slow for a handful of them."""
    found = []
    for index, quantile in enumerate(SIMILARITY_QUANTILES):
        fraction = quantile * (num_rows - 1) % 1
        low, high = around[2 * index : 2 * index + 2]
        found.append(low + (high - low) * fraction)
    return found


def quantiles(x_B: Tensor) -> list[float]:
    """The quantiles at `SIMILARITY_QUANTILES`."""
    return _interpolate(_around_quantiles(x_B).tolist(), len(x_B))
