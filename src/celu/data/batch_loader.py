"""Batches in the agreed order, the next one gathered while the current one computes.

Rows are gathered by a thread of the feed's own: those that lie on an accelerator there, those in
main memory, which may be columns mapped from a file, into page-locked memory where an accelerator
is to have them; so few that waking a thread would take longer, then and there. What comes out is a
function of the round alone.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from celu.data.dataset import Batch, Dataset
from celu.data.order import BatchOrder

# A table of at most so many bytes has its batches gathered sooner than a thread is woken.
_FEW_BYTES = 64 * 1024


class BatchLoader:
    """A party's training batches by round. Rounds are asked for in ascending order."""

    def __init__(self, table: Dataset, order: BatchOrder, device: torch.device) -> None:
        self._table = table
        self._order = order
        self._device = device
        self._windows: dict[tuple[int, int], Dataset] = {}
        self._thread = (
            ThreadPoolExecutor(1, thread_name_prefix="celu-feed")
            if table.num_bytes > _FEW_BYTES
            else None
        )
        self._ahead: tuple[int, Future[Batch]] | None = None

    def batch(self, round_: int) -> Batch:
        """The batch of a round, on the device."""
        if self._thread is None:
            return self._gather(round_)
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != round_:
            ahead = (round_, self._thread.submit(self._gather, round_))
        batch = ahead[1].result()
        self._ahead = (round_ + 1, self._thread.submit(self._gather, round_ + 1))
        return batch

    def close(self) -> None:
        """Let the thread go; what it was gathering is dropped."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def _gather(self, round_: int) -> Batch:
        if self._order.by_blocks:
            cuts = self._order.cuts(round_)
            # Joined even where it is one part: a view would keep its whole window in memory.
            batch = Batch.join([self._window(key).take(cut) for key, cut in cuts])
            # Rounds come in ascending order, so earlier windows are done with.
            self._windows = {k: w for k, w in self._windows.items() if k >= cuts[0][0]}
        else:
            batch = self._table.take(self._order.rows(round_))
        batch = batch.to(self._device)
        _ = batch.row_digest  # computed here, kept for the compute thread
        return batch

    def _window(self, key: tuple[int, int]) -> Dataset:
        if key not in self._windows:
            window = self._order.window(key)
            self._windows[key] = self._table.gather_blocks(window.blocks, window.order)
        return self._windows[key]
