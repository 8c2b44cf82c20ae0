"""Since when a link is up or down, and how long a party waits for its peer.

It holds no lock: the link that owns it does.
"""

from __future__ import annotations

import time

from celu.errors import PeerLost
from celu.events import LinkDown, LinkUp


class Uptime:
    """Whether a link has a working connection: not yet, since when, or no longer and why."""

    def __init__(self, peer: str, deadline_s: float, outage_s: float) -> None:
        self._peer = peer
        self._deadline_s = deadline_s
        self._outage_s = outage_s
        self._up_since: float | None = None
        self._down_since: float | None = None  # None before the first connection, too
        self._reason = ""  # why the latest connection ended

    @property
    def is_down(self) -> bool:
        """Whether it was up before and is not now."""
        return self._down_since is not None

    def go_up(self) -> LinkUp | None:
        """Record a new connection; returns the event if the link was down after it was up."""
        now, since = time.monotonic(), self._down_since
        was_up = self._up_since is not None
        self._up_since, self._down_since = now, None
        if since is None or not was_up:
            return None
        return LinkUp(peer=self._peer, seconds=round(now - since, 3))

    def note_reason(self, reason: str) -> None:
        """Record why the current connection ended."""
        self._reason = reason

    def go_down(self) -> LinkDown | None:
        """Record that the current connection ended; returns the event if the link was up."""
        if self._down_since is not None:
            return None
        self._down_since = time.monotonic()
        return None if self._up_since is None else LinkDown(peer=self._peer, reason=self._reason)

    def give_up_at(self, began: float) -> float:
        """When a wait that began at this time ends, if the link stays as it is."""
        if self._down_since is not None:
            until = self._down_since + self._outage_s
        else:
            until = max(began, self._up_since or began) + self._deadline_s
        # Bounded even if connections come up and break all the time.
        return min(until, began + self._deadline_s + self._outage_s)

    def timeout_error(self, did: str) -> PeerLost:
        """The error for a wait that has ended; `did`: what the peer did not do."""
        if not self.is_down:
            return PeerLost(
                f"{self._peer} {did} nothing for {self._deadline_s:g} s (deadline_s); "
                "is it still running?"
            )
        return PeerLost(
            f"the link to {self._peer} was down for {self._outage_s:g} s (outage_s): "
            f"{self._reason}. "
            "Start again at all parties; the run resumes from its last checkpoint"
        )
