"""A party's log on a simulated disk, written by the code of a real run."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

from celu.event_log import DAMAGED, LOG, EventLog, can_resume, reporting_write_errors
from chaos.checkpoint_writer import RUN
from chaos.disk import SimDisk
from chaos.simulator import Simulator


class SimLogFile:
    """`events.jsonl` on a simulated disk; see `LogFile`. A power cut leaves any prefix of it."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def lines(self) -> Iterator[bytes]:
        """See `LogFile`."""
        content = self._disk.read(RUN / LOG) if LOG in self._disk.names(RUN) else b""
        return iter(BytesIO(content))

    def append(self, line: bytes) -> None:
        """See `LogFile`."""
        self._disk.append(RUN / LOG, line)

    def truncate(self, size: int) -> None:
        """See `LogFile`."""
        self._disk.truncate(RUN / LOG, size)

    def copy_damaged(self) -> Iterator[bytes]:
        """See `LogFile`."""
        self._disk.write(RUN / DAMAGED, self.lines())
        return iter(BytesIO(self._disk.read(RUN / DAMAGED)))


def open_log(disk: SimDisk, simulator: Simulator) -> EventLog:
    """The log of a new process; raises what `EventLog` raises."""
    file, clock = SimLogFile(disk), lambda: simulator.now
    with reporting_write_errors(RUN):
        disk.make_folder(RUN)
    return EventLog(RUN, file, clock, can_resume=is_resumable(disk))


def is_resumable(disk: SimDisk) -> bool:
    """Whether the run folder identifies the run to resume."""
    return can_resume(disk.names(RUN), disk.names(RUN / "checkpoints"))
