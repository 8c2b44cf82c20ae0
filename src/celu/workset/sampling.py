"""Which cached batch the next local step uses (paper, section 3.2).

A policy is a value without hidden state: all it knows are the entries' clocks, so equal settings
give equal choices, whatever the network did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from celu.workset.table import Entry


class Sampling(Protocol):
    """A sampling policy: name it in the contract as `sampling = "module:Class"`."""

    def choose(self, entries: Sequence[Entry], step: int, W: int) -> Entry | None:
        """The entry for local step `step` (oldest entries come first), or None for a bubble."""
        ...


class RoundRobin:
    """No entry is drawn twice within W steps; of the eligible, the one unused for longest goes.

    In steady state each of the W places in the rotation is held by one entry until it is evicted,
    and a newcomer, eligible at once, finds free the place of the entry it replaced. So every step
    has exactly one entry due, and every entry gets exactly R uses. With W=1 this is FedBCD.
    """

    def choose(self, entries: Sequence[Entry], step: int, W: int) -> Entry | None:
        """See `Sampling`; a bubble where every entry was drawn within the last W - 1 steps."""
        eligible = [e for e in entries if e.uses == 1 or step - e.used_at >= W]
        return min(eligible, key=lambda e: (e.used_at, e.round), default=None)
