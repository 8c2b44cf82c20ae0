"""A party's checkpoints on a simulated disk: written later, remembered once promised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.identity import RunIdentity
from celu.checkpoint.writer import Writer
from celu.errors import CheckpointError
from chaos.disk import SimDisk
from chaos.world import Process

_FOLDER = Path("/run")
_WRITING_S = (0.0, 0.3)  # how long after its round a checkpoint may be written


class Later:
    """Does a job some time after it was asked for, as a thread would; see `Writer`.

    Whoever is asked to wait for it finds it done at once: the party's time stands still meanwhile.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._job: Callable[[], None] | None = None
        self._error: CheckpointError | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """See `Writer`."""
        self.flush()
        self._job = job
        self._process.after(self._process.world.chance.uniform(*_WRITING_S), self._write)

    def flush(self) -> None:
        """See `Writer`."""
        self._write()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            try:
                job()
            except CheckpointError as error:
                self._error = error


class Promised:
    """The newest round that a party may count on, whatever happens to it."""

    round = 0


class SimCheckpoints(Checkpoints):
    """Checkpoints that note what they promise."""

    def __init__(self, disk: SimDisk, writer: Writer, promised: Promised) -> None:
        super().__init__(_FOLDER, disk, writer)
        self._promised = promised

    def start(self, identity: RunIdentity, round_: int) -> None:
        """See `Checkpoints`."""
        self._promised.round = min(self._promised.round, round_)
        super().start(identity, round_)

    def _write_checkpoint(self, snapshot: Snapshot, generations: int) -> None:
        super()._write_checkpoint(snapshot, generations)
        self._promised.round = snapshot.round
