"""A run that chooses for itself, under a nemesis, ends with the bits of what it says it chose."""

from __future__ import annotations

import random
import tomllib
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from celu.config.job import Job
from celu.config.replay import replay_toml
from celu.engine import auto
from celu.engine.cost_model import Costs
from celu.engine.state import TrainerState
from celu.errors import CeluError
from celu.events import Event
from celu.session import Result
from celu.workset.workset import Workset
from chaos.cases import Case, case
from chaos.life import Party
from chaos.nemesis import KINDS, Fault, Scale, draw
from chaos.running import _Run

ONE_HOST, TWO_HOSTS = 2, 8  # cases of which method and codec are left open
NUM_SEEDS = 8


@pytest.fixture(autouse=True)
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_FILL_ROUNDS", 3)
    monkeypatch.setattr(auto, "_TRIAL_ROUNDS", (6, 8))
    # Computing takes no virtual time: it would find no room for local steps, and try none.
    monkeypatch.setattr(Costs, "free_steps", lambda *_: (10, 10))


class Run(_Run):
    """Remembers how the guest ended; rounds may be done again, after what was tried is undone."""

    result: Result

    def __init__(self, which: Case, seed: int, faults: list[Fault]) -> None:
        super().__init__(which, seed, faults, None)
        self.problem = self.verdict(seed).problem

    def _ended(self, party: Party, end: Result | CeluError | None) -> None:
        if isinstance(end, Result) and party.name == "guest":
            self.result = end
        super()._ended(party, end)

    def _emitted(self, party: Party, event: Event) -> None:
        pass


def open_case(number: int) -> Case:
    which = case(number)
    written = which.job.model_dump(exclude={"choices", "codec", "method", "rounds"})
    return replace(
        which, job=Job.model_validate({**written, "method": {"auto": True}, "rounds": 45})
    )


@cache
def scale(number: int) -> Scale:
    run = Run(open_case(number), number, [])
    assert run.problem is None
    return Scale(run.world.now, *(run.nemesis.counted(of) for of in ("sends", "operations")))


def differing(number: int, seed: int) -> list[str]:
    """What a disturbed run ends with that another does not, which is told its choices."""
    which = open_case(number)
    faults = draw(random.Random(seed), which.names, scale(number), KINDS)
    run = Run(which, seed, faults)
    assert run.problem is None, f"seed {seed}: {run.problem}"
    assert any("rounds (" in choice.reason for choice in run.result.choices), "nothing was tried"
    job = Job.model_validate(tomllib.loads(replay_toml(which.job, run.result.choices)))
    told = Run(replace(which, job=job), seed, [])
    assert told.problem is None
    return [
        f"seed {seed}: {name} of {party}"
        for party, (tensors, _) in run.kept.items()
        for name, tensor in tensors.items()
        # How alike cached batches were, is also told of those on which steps were tried.
        if name != "similarity" and not torch.equal(tensor, told.kept[party][0][name])
    ]


@pytest.mark.parametrize("number", [ONE_HOST, TWO_HOSTS])
def test_whatever_goes_wrong_it_ends_as_it_would_by_its_choices(number: int) -> None:
    found = [name for seed in range(NUM_SEEDS) for name in differing(number, seed)]
    assert not found


def test_what_is_not_undone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets_the_table(self: TrainerState, modules: Any, optimizer: Any, _: Workset) -> None:
        for which, module in modules.items():
            module.load_state_dict(self.modules[which])
        optimizer.restore(self.optimizer)

    monkeypatch.setattr(TrainerState, "restore", forgets_the_table)
    assert any(differing(ONE_HOST, seed) for seed in range(NUM_SEEDS))
