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

RUN = Path("/run")  # the run folder
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
    """The rounds whose checkpoints must survive any crash.

    A run must be able to resume from `round`. The checkpoint of `newest` must be on disk, perhaps
    set aside: no checkpoint is deleted before training has passed it.
    """

    def __init__(self) -> None:
        self.round = self.newest = 0

    def lose(self) -> None:
        """The nemesis has removed all checkpoints."""
        self.round = self.newest = 0


class SimCheckpoints(Checkpoints):
    """Checkpoints that record which round is durable."""

    def __init__(self, disk: SimDisk, writer: Writer, durable: DurableRound) -> None:
        super().__init__(RUN, disk, writer)
        self._durable = durable

    def start(self, identity: RunIdentity, round_: int) -> None:
        """See `Checkpoints`."""
        self._durable.round = min(self._durable.round, round_)
        super().start(identity, round_)

    def restart_from(self, round_: int) -> None:
        """See `Checkpoints`."""
        if round_ in self.scan()[1]:
            self._durable.round = min(self._durable.round, round_)
        super().restart_from(round_)

    def rounds_on_disk(self) -> list[int]:
        """The rounds of all checkpoints, also of those that were set aside."""
        states = ("round", "superseded", "discarded")
        return sorted(round_ for state in states for round_ in self._rounds(state))

    def _write_checkpoint(self, snapshot: Snapshot, generations: int) -> None:
        super()._write_checkpoint(snapshot, generations)
        self._durable.round = snapshot.round
        self._durable.newest = max(self._durable.newest, snapshot.round)
