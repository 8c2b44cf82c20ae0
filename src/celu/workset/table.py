"""The workset table: the W newest exchanged batches, each with two clocks (paper, section 3.1).

It decides which batches stay cached and counts their uses. It does not choose the batch of the next
local step (`sampling`) or weight its instances (`weighting`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from celu.data.dataset import Batch
from celu.workset.sampling import Sampling


@dataclass
class Entry:
    """One exchanged batch: its rows, Z and dZ, and its clocks.

    What this party received is as decoded; what it sent is exact, so that a lossy codec does not
    look like a change since. `z` and `dz` hold one tensor per host at the guest, and exactly one
    at a host. `curvature` is the loss's, at a host.
    """

    round: int  # first clock: the round that exchanged it
    batch: Batch
    z: tuple[Tensor, ...]
    dz: tuple[Tensor, ...]
    curvature: float = 1.0
    uses: int = 1  # second clock: updates made from it; the exchanged update is the first
    used_at: int = -1  # the local step that last used it; at insertion, the latest step
    # For reports: the similarities of its last local step, and their median, which is computed
    # only when it is reported.
    similarity_B: Tensor | None = None
    similarity: float | None = None


class WorksetTable:
    """At most W entries, each for R updates in total.

    An entry is evicted as soon as it is W rounds old or was used R times.
    """

    def __init__(self, W: int, R: int) -> None:
        self.W = W
        self.R = R
        self.step = 0  # local steps so far, bubbles included
        self._entries: list[Entry] = []  # oldest first

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def resize(self, W: int, R: int) -> None:
        """Change W and R; entries beyond the new limits are evicted."""
        self.W, self.R = W, R
        newest = self._entries[-1].round if self._entries else 0
        self._entries = [e for e in self._entries if e.round >= newest - W + 1 and e.uses < R]

    def state(self) -> tuple[int, list[Entry]]:
        """A copy for `restore`. It shares the tensors, which are never written to."""
        return self.step, [replace(entry) for entry in self._entries]

    def restore(self, state: tuple[int, list[Entry]]) -> None:
        """Return to a state, which stays valid for another `restore`."""
        self.step, entries = state
        self._entries = [replace(entry) for entry in entries]

    def insert(self, entry: Entry) -> None:
        """Add the batch of round i and evict those exchanged before round i - W + 1."""
        self._entries = [e for e in self._entries if e.round >= entry.round - self.W + 1]
        entry.used_at = self.step - 1
        if entry.uses < self.R:
            self._entries.append(entry)

    def sample(self, sampling: Sampling) -> Entry | None:
        """Sample the entry for the next local step and count its use; None is a bubble."""
        entry = sampling.choose(self._entries, self.step, self.W)
        if entry is not None:
            entry.uses += 1
            entry.used_at = self.step
            if entry.uses >= self.R:
                self._entries.remove(entry)
        self.step += 1
        return entry
