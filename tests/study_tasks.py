"""Pieces of work that a test can tell apart; in a file that worker processes can import."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bench.pair import Pair
from bench.paper.profiles import Task
from bench.paper.runs import Values
from celu.errors import DataError


@dataclass(frozen=True)
class Count:
    """Leaves a mark in a file each time that it is done."""

    marks: str
    task: str = "criteo"
    cost: float = 1.0

    def perform(self, task: Task, pair: Pair, seed: int) -> Values:
        assert task.name == "criteo" and "guest" in pair
        with Path(self.marks).open("a", encoding="utf-8") as file:
            file.write(f"{seed}\n")
        return {"seed": seed}


@dataclass(frozen=True)
class Fail(Count):
    """Fails with seed 1. Seed 2 waits until it has, and so is under way then; all after it take
    their time, so that they are not all done before the failure is heard of."""

    def perform(self, task: Task, pair: Pair, seed: int) -> Values:
        failed = Path(self.marks).with_suffix(".failed")
        if seed == 1:
            failed.touch()
            raise DataError("as it should")
        until = time.monotonic() + 60
        while not failed.exists() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.5 if seed > 2 else 0.0)
        return super().perform(task, pair, seed)
