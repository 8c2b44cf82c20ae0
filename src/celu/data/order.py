"""The order of rows that all parties derive alike from (seed, epoch).

It does not feed batches (`table`). The order must be the same on machines with different versions
of every library, so it is built from the two pieces of NumPy whose streams are fixed for good:
SeedSequence and the raw output of PCG64.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def epoch_order(seed: int, epoch: int, num_rows: int) -> Tensor:
    """A permutation of `num_rows` rows: the order of epoch `epoch`."""
    keys = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(num_rows)
    return torch.from_numpy(np.argsort(keys, kind="stable"))


class BatchOrder:
    """Which rows make up the batch of each round; an incomplete last batch is left out."""

    def __init__(self, seed: int, num_rows: int, batch_size: int) -> None:
        self._seed = seed
        self._num_rows = num_rows
        self._batch_size = batch_size
        self.rounds_per_epoch = num_rows // batch_size
        self._orders: dict[int, Tensor] = {}

    def rows(self, round_: int) -> Tensor:
        """The row numbers of the batch that round `round_` exchanges."""
        epoch, position = divmod(round_, self.rounds_per_epoch)
        if epoch not in self._orders:
            # Rounds in flight may straddle an epoch's end: keep the previous order as well.
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = epoch_order(self._seed, epoch, self._num_rows)
        start = position * self._batch_size
        return self._orders[epoch][start : start + self._batch_size]
