"""Training batches by round; a thread prefetches the next one while the current one computes.

Rows on a GPU are gathered there. Rows in main memory, which may be mapped from files, are gathered
on the CPU and copied to the GPU through page-locked memory. The batches of a small dataset are
gathered in the calling thread. A batch is a function of its round alone.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import replace

import torch

from celu.data.dataset import Batch, Dataset
from celu.data.order import BatchOrder
from celu.errors import DataError
from celu.threads import DaemonThreads

# For a dataset up to this size, gathering a batch is faster than waking a thread.
_SMALL_BYTES = 64 * 1024
_TIMEOUT_S = 600.0  # for one batch


class BatchLoader:
    """A party's training batches, or some rows of each: `part` are their positions in a batch.

    Rounds must be requested in ascending order.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: BatchOrder,
        device: torch.device,
        part: slice | None = None,
    ) -> None:
        self._part = part
        self._dataset = dataset
        self._order = order
        self._device = device
        self._windows: dict[tuple[int, int], Dataset] = {}
        self._thread = DaemonThreads(1, "celu-loader") if dataset.num_bytes > _SMALL_BYTES else None
        self._next: tuple[int, Future[Batch]] | None = None

    def batch(self, round_: int) -> Batch:
        """The batch of a round, on the device; raises DataError if reading it takes too long."""
        if self._thread is None:
            return self._gather(round_)
        prefetched, self._next = self._next, None
        if prefetched is None or prefetched[0] != round_:
            prefetched = (round_, self._thread.submit(self._gather, round_))
        wait([prefetched[1]], _TIMEOUT_S)
        if not prefetched[1].done():
            raise DataError(
                f"the rows of round {round_} were not read within {_TIMEOUT_S:g} s; check the disk "
                "of the data, and start again to resume from the last checkpoint"
            )
        batch = prefetched[1].result()
        self._next = (round_ + 1, self._thread.submit(self._gather, round_ + 1))
        return batch

    def close(self) -> None:
        """Stop the thread and drop the prefetched batch; a thread that is stuck is left behind."""
        if self._thread is not None:
            self._thread.close()

    def _gather(self, round_: int) -> Batch:
        if self._order.by_blocks:
            slices = self._order.window_slices(round_)
            # `join` copies even a single slice: a view would hold its whole window in memory.
            batch = Batch.join([self._window(key).take(rows) for key, rows in slices])
            # Rounds are ascending, so earlier windows are not needed any more.
            self._windows = {k: w for k, w in self._windows.items() if k >= slices[0][0]}
            if self._part is not None:
                batch = batch.part(self._part)
        elif self._part is None:
            batch = self._dataset.take(self._order.rows(round_))
        else:
            rows = self._order.rows(round_)
            batch = replace(self._dataset.take(rows[self._part]), whole=self._dataset.tags_of(rows))
        batch = batch.to(self._device)
        _ = batch.row_digest  # computed and cached in this thread, not in the compute thread
        return batch

    def _window(self, key: tuple[int, int]) -> Dataset:
        if key not in self._windows:
            window = self._order.window(key)
            self._windows[key] = self._dataset.gather_blocks(window.blocks, window.order)
        return self._windows[key]
