"""The workset table: the W newest exchanged batches, each with two clocks (paper, section 3.1).

It decides which batches are kept and counts their uses. It does not decide which one is used next
(`sampling`), nor how far a stale one is trusted (`weighting`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from celu.data.dataset import Batch
from celu.workset.sampling import Sampling


@dataclass
class Entry:
    """One exchanged batch: its rows, the statistics that crossed the wire, and its clocks.

    `z` and `dz` hold one tensor a host at the guest, exactly one at a host.
    """

    round: int  # first clock: the round that exchanged it
    batch: Batch
    z: tuple[Tensor, ...]
    dz: tuple[Tensor, ...]
    uses: int = 1  # second clock: updates made from it; the exchanged update is the first
    used_at: int = -1  # the local step that last used it; insertion falls just before a step
    # For the record: how like its last local step's statistics were to these, and the median of
    # that, which is only worked out when it is reported.
    similarity_B: Tensor | None = None
    similarity: float | None = None


class WorksetTable:
    """At most W entries, each good for R updates in all.

    An entry leaves the moment it may not be used again: when it is W rounds old, or used R times.
    """

    def __init__(self, W: int, R: int) -> None:
        self.W = W
        self.R = R
        self.step = 0  # local steps offered so far, bubbles included
        self._entries: list[Entry] = []  # oldest first

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def resize(self, W: int, R: int) -> None:
        """Go on with another W and R; an entry that either of them rules out leaves at once."""
        self.W, self.R = W, R
        newest = self._entries[-1].round if self._entries else 0
        kept = [e for e in self._entries if e.round >= newest - W + 1 and e.uses < R]
        self._entries = kept

    def state(self) -> tuple[int, list[Entry]]:
        """What `restore` brings back. Tensors are shared, as nobody writes to them."""
        return self.step, [replace(entry) for entry in self._entries]

    def restore(self, state: tuple[int, list[Entry]]) -> None:
        """Go back to a state; it can be gone back to again."""
        self.step, entries = state
        self._entries = [replace(entry) for entry in entries]

    def insert(self, entry: Entry) -> None:
        """Add a batch just exchanged and discard those inserted before round i - W + 1."""
        self._entries = [e for e in self._entries if e.round >= entry.round - self.W + 1]
        entry.used_at = self.step - 1
        if entry.uses < self.R:
            self._entries.append(entry)

    def sample(self, sampling: Sampling) -> Entry | None:
        """Draw the entry of the next local step and count its use; None is a bubble."""
        entry = sampling.choose(self._entries, self.step, self.W)
        if entry is not None:
            entry.uses += 1
            entry.used_at = self.step
            if entry.uses >= self.R:
                self._entries.remove(entry)
        self.step += 1
        return entry
