"""Run specs for tests that count their executions; in a file that worker processes can import."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.pair import Pair
from bench.paper.profiles import Task
from bench.paper.runs import Values
from celu.errors import DataError


@dataclass(frozen=True)
class Count:
    """Appends its seed to a file each time that it is executed."""

    kind: ClassVar[str] = "Count"
    executed: str
    task: str = "criteo"
    cost: float = 1.0

    def execute(self, task: Task, pair: Pair, seed: int) -> Values:
        assert task.name == "criteo" and "guest" in pair
        with Path(self.executed).open("a", encoding="utf-8") as file:
            file.write(f"{seed}\n")
        return {"seed": seed}


@dataclass(frozen=True)
class Fail(Count):
    """Fails with seed 1. Seed 2 waits for that, so it is in progress then; the later seeds take
    half a second each, so that some have not started when the failure is seen."""

    kind: ClassVar[str] = "Fail"

    def execute(self, task: Task, pair: Pair, seed: int) -> Values:
        failed = Path(self.executed).with_suffix(".failed")
        if seed == 1:
            failed.touch()
            raise DataError("as it should")
        until = time.monotonic() + 600
        while not failed.exists() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.5 if seed > 2 else 0.0)
        return super().execute(task, pair, seed)
