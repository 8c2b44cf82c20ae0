"""The sizes of a study: data, shapes, rounds and learning rates for each kind of machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from bench.pair import Shape

# These values, like the fields of Task and Shape, are part of the keys in runs.jsonl: renaming one
# would execute every run again. "made-up" is the old word for "synthetic".
Source = Literal["made-up", "sample", "flights"]


_FORMATS = {"criteo": "Criteo", "avazu": "Avazu", "clicks": "Criteo"}


@dataclass(frozen=True)
class Task:
    """A dataset, and the model, sizes and rounds to train on it."""

    name: str
    source: Source
    shape: Shape

    @property
    def description(self) -> str:
        """The data and the sizes, for the notes under a result."""
        shape = self.shape
        format_ = _FORMATS.get(self.name, "")
        rows = {
            "made-up": f"synthetic clicks of {format_}'s shape, {shape.rows:,} rows",
            "sample": f"a sample of {self.name.title()}",
            "flights": "flights of 2013",
        }[self.source]
        return (
            f"{rows}, {shape.model.upper()}, batch {shape.batch}, Z {shape.width}, embedding "
            f"{shape.embedding}, {shape.rounds} rounds at most, AUC on {shape.test_rows:,} "
            f"held-out rows at most, every {shape.every}"
        )


@dataclass(frozen=True)
class Profile:
    """The size of a study for one kind of machine."""

    name: str
    tasks: dict[str, Task]
    seeds: tuple[int, ...]
    rates: dict[str, tuple[float, ...]]  # by regime: the learning rates vanilla is tuned over
    checkpoints: tuple[int, ...]  # rounds after which gradients are compared
    replicas: int  # worksets drawn after each of these rounds
    brief: bool = False  # whether the parts with many variants take one task and a few of them

    @property
    def needs_samples(self) -> bool:
        """Whether it needs data that celu does not ship."""
        return any(task.source == "sample" for task in self.tasks.values())


def _tasks(*tasks: Task) -> dict[str, Task]:
    return {task.name: task for task in tasks}


_TINY = Shape(256, 32, 4, (32,), rows=60_000, rounds=80, every=8, test_rows=4000)
_SMALL = Shape(512, 64, 8, (64,), rows=0, rounds=1000, every=25, test_rows=10_000)
# The paper's constants. Fewer rows than its 41 and 36 million, and fewer rounds.
_PAPER = Shape(4096, 256, 128, (256, 256), 10_000_000, rounds=2000, every=50, device="cuda")
_FLIGHTS = Shape(1024, 64, 8, (64,), rows=0, rounds=600, every=20, test_rows=10_000)

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "smoke",
            _tasks(
                Task("criteo", "made-up", _TINY),
                Task("avazu", "made-up", replace(_TINY, model="dssm")),
                Task("flights", "flights", replace(_TINY, rows=0, embedding=8, rounds=60)),
                Task("clicks", "made-up", replace(_TINY, rows=40_000)),
            ),
            seeds=(1, 2),
            rates={"paper": (0.2, 0.5), "strong": (0.01, 0.03)},
            checkpoints=(20, 60),
            replicas=6,
            brief=True,
        ),
        Profile(
            "cpu",
            _tasks(
                Task("criteo", "sample", _SMALL),
                Task("avazu", "sample", replace(_SMALL, batch=256, rounds=600, model="dssm")),
                Task("flights", "flights", _FLIGHTS),
                Task("clicks", "made-up", replace(_SMALL, rows=600_000)),
            ),
            seeds=(1, 2, 3),
            rates={"paper": (0.1, 0.2, 0.5, 1.0), "strong": (0.003, 0.01, 0.03, 0.1)},
            checkpoints=(100, 300, 600),
            replicas=24,
        ),
        Profile(
            "gpu",
            _tasks(
                Task("criteo", "made-up", _PAPER),
                Task(
                    "avazu", "made-up", replace(_PAPER, model="dssm", rows=6_000_000, rounds=1200)
                ),
                Task("flights", "flights", replace(_FLIGHTS, device="cuda")),
                Task("clicks", "made-up", replace(_PAPER, rows=4_000_000)),
            ),
            seeds=(1, 2, 3),
            rates={"paper": (0.05, 0.1, 0.2, 0.5, 1.0), "strong": (0.003, 0.01, 0.03, 0.1)},
            checkpoints=(100, 400, 1000),
            replicas=12,
        ),
    )
}
