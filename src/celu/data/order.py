"""The order of rows, which every party derives from (seed, epoch).

It does not load batches (`batch_loader`). Parties may run different versions of every library, so
the order uses only the parts of NumPy whose output is guaranteed not to change: SeedSequence and
the raw output of PCG64.

A full shuffle of each epoch needs random access, which suits rows that fit in memory. The block
shuffle (the two-level shuffle of CorgiPile, SIGMOD 2022) reads whole blocks: each epoch shuffles
the blocks, splits them into windows, and shuffles the rows within each window. The cost: rows of
different windows never share a batch of that epoch, and rows of a block always share a window. Each
row still occurs once an epoch and windows differ between epochs. A store's own order is random
(`tags`), so each window is a fair sample.
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
    """A permutation of `count` elements, a function of `key`."""
    keys = np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)
    # NumPy's default sort is several times as fast as its stable one; without equal keys, which 64
    # random bits hardly ever are, both give the same order.
    order = np.argsort(keys)
    ordered = keys[order]
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


@lru_cache(maxsize=2)  # two are in use at a time; parties in one process share them
def epoch_order(seed: int, epoch: int, num_rows: int) -> Tensor:
    """A permutation of `num_rows` rows: the order of epoch `epoch`. Cached: do not modify it."""
    return torch.from_numpy(shuffled(num_rows, seed, epoch))


class ShuffleWindow(NamedTuple):
    """Rows that are in memory together: blocks, each a range of rows, and the order to use them in.

    `order` indexes the concatenated blocks.
    """

    blocks: tuple[tuple[int, int], ...]
    order: Rows

    @property
    def rows(self) -> Rows:
        """The row numbers in the order of use."""
        return np.concatenate([np.arange(*block) for block in self.blocks])[self.order]


class BatchOrder:
    """The rows of each round's batch; the incomplete last batch of an epoch is dropped."""

    def __init__(
        self, seed: int, num_rows: int, batch_size: int, order: Order | None = None
    ) -> None:
        self._seed = seed
        self._num_rows = num_rows
        self.batch_size = batch_size
        self._order = order or Order()
        self.rounds_per_epoch = num_rows // batch_size
        self._order_cache: dict[int, Tensor] = {}
        self._window_cache: dict[int, tuple[list[tuple[tuple[int, int], ...]], Rows]] = {}

    @property
    def by_blocks(self) -> bool:
        """Whether the order is a block shuffle."""
        return self._order.shuffle == "blocks"

    def rows(self, round_: int) -> Tensor:
        """The row numbers of the batch that round `round_` exchanges."""
        if self.by_blocks:
            parts = [self.window(key).rows[part] for key, part in self.window_slices(round_)]
            return torch.from_numpy(np.concatenate(parts))
        epoch, start = self._position(round_)
        if epoch not in self._order_cache:
            # Rounds in flight may belong to the previous epoch: cache its order too.
            self._order_cache = {e: o for e, o in self._order_cache.items() if e >= epoch - 1}
            self._order_cache[epoch] = epoch_order(self._seed, epoch, self._num_rows)
        return self._order_cache[epoch][start : start + self.batch_size]

    def epoch_ahead(self, round_: int) -> int:
        """The epoch that is half an epoch ahead of a round."""
        return (round_ + self.rounds_per_epoch // 2) // self.rounds_per_epoch

    def prepare(self, epoch: int) -> None:
        """Compute the order of an epoch that is a full shuffle, for all orders of this process.

        For many rows it takes seconds, for which training need not wait: call it from a thread.
        """
        if not self.by_blocks:
            epoch_order(self._seed, epoch, self._num_rows)

    def window_slices(self, round_: int) -> Sequence[tuple[tuple[int, int], slice]]:
        """The windows, as (epoch, number), that a batch consists of, and the slice of each."""
        epoch, start = self._position(round_)
        _, ends = self._windows(epoch)
        stop, slices = start + self.batch_size, []
        number = int(np.searchsorted(ends, start, side="right"))
        while start < stop:
            begin = int(ends[number - 1]) if number else 0
            until = min(stop, int(ends[number]))
            slices.append(((epoch, number), slice(start - begin, until - begin)))
            start, number = until, number + 1
        return slices

    def window(self, key: tuple[int, int]) -> ShuffleWindow:
        """A window of an epoch, by (epoch, number)."""
        epoch, number = key
        windows, _ = self._windows(epoch)
        blocks = windows[number]
        count = sum(stop - start for start, stop in blocks)
        return ShuffleWindow(blocks, shuffled(count, self._seed, epoch, 1, number))

    def _position(self, round_: int) -> tuple[int, int]:
        epoch, position = divmod(round_, self.rounds_per_epoch)
        return epoch, position * self.batch_size

    def _windows(self, epoch: int) -> tuple[list[tuple[tuple[int, int], ...]], Rows]:
        """The blocks of each window of an epoch, and the end of each window in rows."""
        if epoch not in self._window_cache:
            self._window_cache = {e: p for e, p in self._window_cache.items() if e >= epoch - 1}
            size, num_blocks = self._order.block_rows, self._order.window_blocks
            starts = shuffled(-(-self._num_rows // size), self._seed, epoch) * size
            blocks = [(int(s), int(min(s + size, self._num_rows))) for s in starts]
            windows = [tuple(blocks[i : i + num_blocks]) for i in range(0, len(blocks), num_blocks)]
            counts = [sum(stop - start for start, stop in window) for window in windows]
            self._window_cache[epoch] = (windows, np.cumsum(counts))
        return self._window_cache[epoch]
