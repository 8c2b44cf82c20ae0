"""The checkpoints of a party with several ranks: the first has the folder, and tells the others."""

from __future__ import annotations

from typing import Any

from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.identity import RunIdentity
from celu.ranks.slices import Slices


class RankCheckpoints(Checkpoints):
    """See `Checkpoints`; only the first rank passes its own, and only it reads and writes."""

    def __init__(self, ranks: Slices, own: Checkpoints | None) -> None:
        self._ranks = ranks
        self._own = own
        self._found: dict[str, Any] | None = None
        self.damaged, self.contracts = {}, {}

    def scan(self) -> tuple[RunIdentity | None, list[int]]:
        """See `Checkpoints`."""
        if self._found is None:
            self._found = self._ranks.share(self._scan)
            contracts = self._found["contracts"].items()
            self.contracts = {int(round_): contract for round_, contract in contracts}
            self.damaged = {} if self._own is None else self._own.damaged
        identity = self._found["identity"]
        return None if identity is None else RunIdentity.from_json(identity), self._found["rounds"]

    def _scan(self) -> dict[str, Any]:
        assert self._own is not None
        identity, rounds = self._own.scan()
        return {
            "identity": None if identity is None else identity.to_json(),
            "rounds": rounds,
            "contracts": dict(self._own.contracts),
            "superseded": self._own.superseded_rounds(),
        }

    def superseded_rounds(self) -> list[int]:
        """See `Checkpoints`."""
        self.scan()
        assert self._found is not None
        rounds: list[int] = self._found["superseded"]
        return rounds

    def start(self, identity: RunIdentity, round_: int) -> None:
        """See `Checkpoints`."""
        if self._own is not None:
            self._own.start(identity, round_)

    def load(self, round_: int) -> Snapshot:
        """See `Checkpoints`; all ranks get the tensors."""
        loaded: list[Snapshot] = []

        def load() -> dict[str, Any]:
            assert self._own is not None
            loaded.append(self._own.load(round_))
            return loaded[0].state

        state = self._ranks.share(load)
        tensors = self._ranks.broadcast(loaded[0].tensors if loaded else None)
        return Snapshot(round_, tensors, state)

    def save(self, snapshot: Snapshot, generations: int) -> None:
        """See `Checkpoints`."""
        if self._own is not None:
            self._own.save(snapshot, generations)

    def flush(self) -> None:
        """See `Checkpoints`."""
        if self._own is not None:
            self._own.flush()
