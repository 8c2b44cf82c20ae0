"""The order of rows that all parties derive alike from (seed, epoch).

It does not feed batches (`feed`). The order must be the same on machines with different versions
of every library, so it is built from the two pieces of NumPy whose streams are fixed for good:
SeedSequence and the raw output of PCG64.

Shuffling all rows anew each epoch reads them from everywhere at once, which only suits rows that
fit in memory. Shuffling in blocks (the two-level shuffle of CorgiPile, SIGMOD 2022) reads whole
blocks: each epoch puts the blocks into a new order, takes them a window at a time, and shuffles the
rows of a window among themselves. What is given up: two rows that lie in different windows of an
epoch cannot meet in a batch of it, and rows of a block always share a window. What is kept: every
row once an epoch, windows of other blocks in every epoch, and, because a store's own order is a
random one already (`tags`), windows that are fair samples of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from celu.config.job import Order

Rows = npt.NDArray[np.int64]


def shuffled(count: int, *key: int) -> Rows:
    """A permutation of `count` things, a function of `key`."""
    keys = np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)
    return np.argsort(keys, kind="stable")


@lru_cache(maxsize=2)  # so many are in use at once, and parties of one process share them
def epoch_order(seed: int, epoch: int, num_rows: int) -> Tensor:
    """A permutation of `num_rows` rows: the order of epoch `epoch`. Nobody may write to it."""
    return torch.from_numpy(shuffled(num_rows, seed, epoch))


class ShuffleWindow(NamedTuple):
    """Rows that are in memory together: blocks, each a range of rows, and the order to use them in.

    `order` counts within the window's blocks laid end to end.
    """

    blocks: tuple[tuple[int, int], ...]
    order: Rows

    @property
    def rows(self) -> Rows:
        """The row numbers in the order of their use."""
        return np.concatenate([np.arange(*block) for block in self.blocks])[self.order]


class BatchOrder:
    """Which rows make up the batch of each round; an incomplete last batch is left out."""

    def __init__(
        self, seed: int, num_rows: int, batch_size: int, order: Order | None = None
    ) -> None:
        self._seed = seed
        self._num_rows = num_rows
        self._batch_size = batch_size
        self._order = order or Order()
        self.rounds_per_epoch = num_rows // batch_size
        self._orders: dict[int, Tensor] = {}
        self._plans: dict[int, tuple[list[tuple[tuple[int, int], ...]], Rows]] = {}

    @property
    def by_blocks(self) -> bool:
        """Whether rows are read a window of blocks at a time."""
        return self._order.shuffle == "blocks"

    def rows(self, round_: int) -> Tensor:
        """The row numbers of the batch that round `round_` exchanges."""
        if self.by_blocks:
            parts = [self.window(key).rows[cut] for key, cut in self.cuts(round_)]
            return torch.from_numpy(np.concatenate(parts))
        epoch, start = self._place(round_)
        if epoch not in self._orders:
            # Rounds in flight may straddle an epoch's end: keep the previous order as well.
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = epoch_order(self._seed, epoch, self._num_rows)
        return self._orders[epoch][start : start + self._batch_size]

    def cuts(self, round_: int) -> Sequence[tuple[tuple[int, int], slice]]:
        """The windows, (epoch, number), that a batch is cut from, and which part of each."""
        epoch, start = self._place(round_)
        _, ends = self._plan(epoch)
        stop, cuts = start + self._batch_size, []
        number = int(np.searchsorted(ends, start, side="right"))
        while start < stop:
            begin = int(ends[number - 1]) if number else 0
            until = min(stop, int(ends[number]))
            cuts.append(((epoch, number), slice(start - begin, until - begin)))
            start, number = until, number + 1
        return cuts

    def window(self, key: tuple[int, int]) -> ShuffleWindow:
        """A window of an epoch, as `cuts` names it."""
        epoch, number = key
        windows, _ = self._plan(epoch)
        blocks = windows[number]
        count = sum(stop - start for start, stop in blocks)
        return ShuffleWindow(blocks, shuffled(count, self._seed, epoch, 1, number))

    def _place(self, round_: int) -> tuple[int, int]:
        epoch, position = divmod(round_, self.rounds_per_epoch)
        return epoch, position * self._batch_size

    def _plan(self, epoch: int) -> tuple[list[tuple[tuple[int, int], ...]], Rows]:
        if epoch not in self._plans:
            self._plans = {e: p for e, p in self._plans.items() if e >= epoch - 1}
            size, many = self._order.block_rows, self._order.window_blocks
            starts = shuffled(-(-self._num_rows // size), self._seed, epoch) * size
            blocks = [(int(s), int(min(s + size, self._num_rows))) for s in starts]
            windows = [tuple(blocks[i : i + many]) for i in range(0, len(blocks), many)]
            counts = [sum(stop - start for start, stop in window) for window in windows]
            self._plans[epoch] = (windows, np.cumsum(counts))
        return self._plans[epoch]
