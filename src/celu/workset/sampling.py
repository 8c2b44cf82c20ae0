"""Which cached batch the next local step uses (paper, section 3.2).

A policy has no state of its own and uses only the entries' clocks, so equal settings give equal
choices regardless of network timing.
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
    """Samples the least recently used entry, and none twice within W steps.

    In steady state each of the W slots of the rotation belongs to one entry until it is evicted.
    A new entry is eligible at once and takes over the slot of the entry it replaces. So every step
    has exactly one eligible entry, and every entry gets exactly R uses. With W=1 this is FedBCD.
    """

    def choose(self, entries: Sequence[Entry], step: int, W: int) -> Entry | None:
        """See `Sampling`; a bubble if every entry was sampled within the last W - 1 steps."""
        eligible = [e for e in entries if e.uses == 1 or step - e.used_at >= W]
        return min(eligible, key=lambda e: (e.used_at, e.round), default=None)
