"""Training batches by round; a thread prefetches the next ones while the current one computes.

Rows on a GPU are gathered there, those of several rounds at once: a round would be over before a
thread had launched the few kernels of one. Rows in main memory, which may be mapped from files, are
gathered on the CPU and copied to the GPU through page-locked memory. The batches of a small dataset
are gathered in the calling thread. A batch is a function of its round alone.
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
_TIMEOUT_S = 600.0  # for a batch, or those that are gathered with it
# Of rows on a GPU: the largest number of rounds, and amount of memory, at once; a few are held.
_MAX_ROUNDS, _MAX_BYTES = 16, 1 << 26


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
        self._order_thread = DaemonThreads(1, "celu-order")
        self._ordered = -1  # the last epoch whose rows are ordered, or soon will be
        self._num_rounds = _rounds_at_once(dataset, order, part)
        self._current: tuple[int, list[Batch]] | None = None
        self._next: tuple[int, Future[list[Batch]]] | None = None

    def batch(self, round_: int) -> Batch:
        """The batch of a round, on the device; raises DataError if reading it takes too long."""
        if self._thread is None:
            return self._gather_one(round_)
        group, index = divmod(round_, self._num_rounds)
        if self._current is None or self._current[0] != group:
            self._current = (group, self._read(self._thread, group))
        return self._current[1][index]

    def _read(self, thread: DaemonThreads, group: int) -> list[Batch]:
        """The batches of a group of rounds; prefetches the next group."""
        first = group * self._num_rounds
        prefetched, self._next = self._next, None
        if prefetched is None or prefetched[0] != group:
            prefetched = (group, thread.submit(self._gather, first))
        wait([prefetched[1]], _TIMEOUT_S)
        if not prefetched[1].done():
            raise DataError(
                f"the rows of round {first} were not read within {_TIMEOUT_S:g} s; check the disk "
                "of the data, and start again to resume from the last checkpoint"
            )
        batches = prefetched[1].result()
        self._next = (group + 1, thread.submit(self._gather, first + self._num_rounds))
        epoch = self._order.epoch_ahead(first)
        if epoch > self._ordered:
            self._ordered = epoch
            self._order_thread.submit(self._order.prepare, epoch)
        return batches

    def close(self) -> None:
        """Stop the threads and drop prefetched batches; a thread that is stuck is left behind."""
        if self._thread is not None:
            self._thread.close()
        self._order_thread.close()

    def _gather(self, first: int) -> list[Batch]:
        """The batches of `_num_rounds` rounds from `first` on."""
        if self._num_rounds == 1:
            batches = [self._gather_one(first)]
        else:
            rounds = range(first, first + self._num_rounds)
            rows = [self._order.rows(round_) for round_ in rounds]
            batches = self._dataset.take(torch.cat(rows)).split(len(rows[0]))
        for batch in batches:
            _ = batch.row_digest  # computed and cached in this thread, not in the compute thread
        return batches

    def _gather_one(self, round_: int) -> Batch:
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
        return batch.to(self._device)

    def _window(self, key: tuple[int, int]) -> Dataset:
        if key not in self._windows:
            window = self._order.window(key)
            self._windows[key] = self._dataset.gather_blocks(window.blocks, window.order)
        return self._windows[key]


def _rounds_at_once(dataset: Dataset, order: BatchOrder, part: slice | None) -> int:
    if not dataset.is_on_accelerator or order.by_blocks or part is not None:
        return 1
    batch_bytes = max(1, dataset.num_bytes * order.batch_size // dataset.num_rows)
    return max(1, min(_MAX_ROUNDS, _MAX_BYTES // batch_bytes))
