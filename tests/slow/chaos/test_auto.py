"""A self-tuning run with faults ends with the bits of a run that replays its choices."""

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
from celu.engine import auto, plan
from celu.engine.auto import AutoPlan
from celu.engine.cost_model import Costs
from celu.engine.outcome import Outcome
from celu.engine.state import TrainerState
from celu.errors import CeluError
from celu.events import Event
from celu.result import Result
from celu.workset.workset import Workset
from chaos import run
from chaos.nemesis import KINDS, Fault, Scale, draw
from chaos.party_process import Party
from chaos.scenarios import Scenario, scenario

ONE_HOST, TWO_HOSTS = 2, 8  # scenarios whose method and codec are removed
NUM_SEEDS = 8


@pytest.fixture(autouse=True)
def short_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of a few rounds, the first of which is always rolled back once."""
    monkeypatch.setattr(plan, "MEASURING_ROUNDS", 6)
    monkeypatch.setattr(auto, "_FIRST_STOP", 10)
    monkeypatch.setattr(auto, "_GROWTH", 2)
    # Computing takes no virtual time here, so it would find no time for local steps.
    monkeypatch.setattr(Costs, "max_steps", lambda *_: (10, 10))
    # A party that was done before others lost their checkpoints is not asked again: it must end
    # with the same weights in every attempt, although a pause looks like a slow party.
    monkeypatch.setattr(Costs, "depth", lambda *_: 3)

    def trouble(_: AutoPlan, outcome: Outcome, caution: int) -> str:
        return "risen" if outcome.segment.start == 0 and caution == 0 else ""

    monkeypatch.setattr(AutoPlan, "_trouble", trouble)


class Run(run.Run):
    """Records the guest's result; allows repeated rounds, as the first stage is rolled back."""

    result: Result

    def __init__(self, scenario: Scenario, seed: int, faults: list[Fault]) -> None:
        super().__init__(scenario, seed, faults, None)
        self.problem = self.verdict().problem

    def _on_end(self, party: Party, end: Result | CeluError | None) -> None:
        if isinstance(end, Result) and party.name == "guest":
            self.result = end
        super()._on_end(party, end)

    def _on_event(self, party: Party, event: Event) -> None:
        pass


def tuned(number: int) -> Scenario:
    """A scenario with automatic tuning."""
    original = scenario(number)
    written = original.job.model_dump(exclude={"choices", "codec", "method", "rounds"})
    return replace(
        original, job=Job.model_validate({**written, "method": {"auto": True}, "rounds": 45})
    )


@cache
def scale(number: int) -> Scale:
    done = Run(tuned(number), number, [])
    assert done.problem is None
    return Scale(
        done.simulator.now, *(done.nemesis.max_count(what) for what in ("sends", "operations"))
    )


def differing(number: int, seed: int) -> list[str]:
    """Names of the tensors that differ between a run with faults and a replay of its choices."""
    original = tuned(number)
    faults = draw(random.Random(seed), original.names, scale(number), KINDS)
    done = Run(original, seed, faults)
    assert done.problem is None, f"seed {seed}: {done.problem}"
    assert any("rolled back" in choice.reason for choice in done.result.choices)
    job = Job.model_validate(tomllib.loads(replay_toml(original.job, done.result.choices)))
    replay = Run(replace(original, job=job), seed, [])
    assert replay.problem is None
    return [
        f"seed {seed}: {name} of {party}"
        for party, (tensors, _) in done.final_states.items()
        for name, tensor in tensors.items()
        # The recorded similarities include local steps that were rolled back.
        if name != "similarity" and not torch.equal(tensor, replay.final_states[party][0][name])
    ]


@pytest.mark.parametrize("number", [ONE_HOST, TWO_HOSTS])
def test_a_tuned_run_with_faults_ends_like_a_replay_of_its_choices(number: int) -> None:
    found = [name for seed in range(NUM_SEEDS) for name in differing(number, seed)]
    assert not found


def test_an_incomplete_rollback_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not the table: it is empty at the savepoint.
    def forgets_the_optimizer(self: TrainerState, modules: Any, _: Any, workset: Workset) -> None:
        for which, module in modules.items():
            module.load_state_dict(self.modules[which])
        workset.table.restore(self.table)

    monkeypatch.setattr(TrainerState, "restore", forgets_the_optimizer)
    assert any(differing(ONE_HOST, seed) for seed in range(NUM_SEEDS))
