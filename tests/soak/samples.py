"""What a party's process and its run folder use, as /proc and the disk say."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from celu.checkpoint.generations import FOLDER
from celu.record.tail import EVENTS

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """One party at one time. Rounds and link failures are those of the whole run so far."""

    minute: float
    rss_mib: float
    threads: int
    descriptors: int
    checkpoints: int
    events_mib: float  # events.jsonl: it grows by design
    other_files_mib: float  # of the run folder
    log_mib: float
    cpu_s: float
    rounds: int
    links_down: int


@dataclass
class Sampler:
    """Samples one party, and counts its events as they are written."""

    pid: int
    run: Path
    log: Path
    counts: Counter[str] = field(default_factory=Counter)  # of events, by kind
    round: int = 0
    _bytes_read: int = 0

    def sample(self, minute: float) -> Sample:
        """The party now; raises OSError or KeyError if its process has ended."""
        self._read_events()
        proc = Path("/proc") / str(self.pid)
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
        # After the name in parentheses, which may hold spaces: utime and stime are fields 14, 15.
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        sizes = _sizes(self.run)
        return Sample(
            minute=round(minute, 3),
            rss_mib=round(int(status["VmRSS"].split()[0]) / 1024, 2),
            threads=int(status["Threads"]),
            descriptors=len(list((proc / "fd").iterdir())),
            checkpoints=len(list((self.run / FOLDER).glob("round-*"))),
            events_mib=_mib(sizes.pop(self.run / EVENTS, 0)),
            other_files_mib=_mib(sum(sizes.values())),
            log_mib=_mib(self.log.stat().st_size),
            cpu_s=round((int(fields[11]) + int(fields[12])) / _TICKS_PER_S, 2),
            rounds=self.round,
            links_down=self.counts["link_down"],
        )

    def _read_events(self) -> None:
        file = self.run / EVENTS
        if not file.exists():
            return
        with file.open("rb") as grown:
            grown.seek(self._bytes_read)
            new = grown.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._bytes_read += len(complete)
        for line in complete.splitlines():
            event = json.loads(line)
            self.counts[event["event"]] += 1
            if event["event"] in ("round", "checkpoint"):
                self.round = max(self.round, event["round"])


def _sizes(folder: Path) -> dict[Path, int]:
    """Bytes of each file in a folder; an old checkpoint may be deleted meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                found[path] = path.stat().st_size
        except FileNotFoundError:
            continue
    return found


def _mib(num_bytes: int) -> float:
    return round(num_bytes / 2**20, 4)
