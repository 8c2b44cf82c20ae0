"""The checkpoints of a party with several ranks.

The first rank reads and writes them, and tells the others. With sharded tables, every rank writes
its rows, and reads checkpoints itself: all need the run folder.
"""

from __future__ import annotations

from typing import Any

from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.identity import RunIdentity
from celu.checkpoint.shards import WHOLE, Share
from celu.errors import ConfigError
from celu.ranks.slices import Slices


class RankCheckpoints(Checkpoints):
    """See `Checkpoints`. `files` are those of the run folder as this rank sees it."""

    def __init__(self, ranks: Slices, files: Checkpoints, *, is_sharded: bool) -> None:
        self._ranks = ranks
        self._files = files
        self._is_sharded = is_sharded
        self._found: dict[str, Any] | None = None
        self.damaged, self.contracts = {}, {}

    def scan(self) -> tuple[RunIdentity | None, list[int]]:
        """See `Checkpoints`."""
        if self._found is None:
            self._found = self._ranks.share(self._scan)
            contracts = self._found["contracts"].items()
            self.contracts = {int(round_): contract for round_, contract in contracts}
            self.damaged = self._files.damaged if self._ranks.is_first else {}
        identity = self._found["identity"]
        return None if identity is None else RunIdentity.from_json(identity), self._found["rounds"]

    def _scan(self) -> dict[str, Any]:
        identity, rounds = self._files.scan()
        return {
            "identity": None if identity is None else identity.to_json(),
            "rounds": rounds,
            "contracts": dict(self._files.contracts),
            "superseded": self._files.superseded_rounds(),
        }

    def superseded_rounds(self) -> list[int]:
        """See `Checkpoints`."""
        self.scan()
        assert self._found is not None
        rounds: list[int] = self._found["superseded"]
        return rounds

    def start(self, identity: RunIdentity, round_: int) -> None:
        """See `Checkpoints`; raises ConfigError at a rank that needs the folder and has another."""

        def start() -> str:
            self._files.start(identity, round_)
            return identity.run

        run = self._ranks.share(start)  # a guest's other ranks know another, for a new run
        if self._is_sharded and not self._ranks.is_first and not self._files.is_of(run):
            raise ConfigError(
                f"{self._files.folder}: expected the run folder of the first rank, got another "
                f"at rank {self._ranks.own.start}: with sharded tables every rank writes its rows "
                "there; set run_dir to a folder on storage that all machines share"
            )

    def load(self, round_: int, share: Share = WHOLE) -> Snapshot:
        """See `Checkpoints`; without sharded tables, the first rank sends the tensors."""
        if self._is_sharded:
            return self._files.load(round_, share)
        loaded: list[Snapshot] = []

        def load() -> dict[str, Any]:
            loaded.append(self._files.load(round_))
            return loaded[0].state

        state = self._ranks.share(load)
        tensors = self._ranks.broadcast(loaded[0].tensors if loaded else None)
        return Snapshot(round_, tensors, state)

    def save(self, snapshot: Snapshot, generations: int) -> None:
        """See `Checkpoints`."""
        if self._ranks.is_first:
            self._files.save(snapshot, generations)
        elif self._is_sharded:
            self._files.give(snapshot)

    def flush(self) -> None:
        """See `Checkpoints`."""
        self._files.flush()
