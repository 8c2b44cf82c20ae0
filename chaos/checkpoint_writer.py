"""A party's checkpoints on a simulated disk: written with a delay, and tracked once durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from celu.checkpoint.generations import Checkpoints, Snapshot
from celu.checkpoint.identity import RunIdentity
from celu.checkpoint.writer import Writer
from celu.errors import CheckpointError
from chaos.disk import SimDisk
from chaos.simulator import Process

_FOLDER = Path("/run")
_DELAY_S = (0.0, 0.3)  # between a round and the write of its checkpoint


class DelayedWriter:
    """Runs a job some time after it was submitted, like a background thread; see `Writer`.

    Waiting for it runs the job at once: the party's time stands still meanwhile.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._job: Callable[[], None] | None = None
        self._error: CheckpointError | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """See `Writer`."""
        self.flush()
        self._job = job
        self._process.after(self._process.simulator.rng.uniform(*_DELAY_S), self._write)

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


class DurableRound:
    """The latest round whose checkpoint must survive any crash."""

    round = 0


class SimCheckpoints(Checkpoints):
    """Checkpoints that record which round is durable."""

    def __init__(self, disk: SimDisk, writer: Writer, durable: DurableRound) -> None:
        super().__init__(_FOLDER, disk, writer)
        self._durable = durable

    def start(self, identity: RunIdentity, round_: int) -> None:
        """See `Checkpoints`."""
        self._durable.round = min(self._durable.round, round_)
        super().start(identity, round_)

    def _write_checkpoint(self, snapshot: Snapshot, generations: int) -> None:
        super()._write_checkpoint(snapshot, generations)
        self._durable.round = snapshot.round
