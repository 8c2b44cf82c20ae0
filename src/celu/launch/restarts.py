"""How often the processes of peers may restart without progress before a party gives up."""

from __future__ import annotations

from celu.errors import PeerLost, PeerRestarted

MAX_RESTARTS = 100  # of peers, without progress in between


class Restarts:
    """Counts the restarts of peers since the last progress, such as "a new checkpoint"."""

    def __init__(self, progress: str) -> None:
        self._progress = progress
        self._newest: object = None
        self._count = 0

    def add(self, error: PeerRestarted, newest: object) -> None:
        """Count a restart; `newest` differs from that of the restart before if there was progress.

        Raises PeerLost after too many.
        """
        self._count = self._count + 1 if newest == self._newest else 1
        self._newest = newest
        if self._count > MAX_RESTARTS:
            raise PeerLost(
                f"{error}, and peers had restarted {MAX_RESTARTS} times before without "
                f"{self._progress} in between; find the cause at their side, and start again at "
                "all parties to resume"
            ) from error
