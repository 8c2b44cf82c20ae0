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
from celu.engine import auto
from celu.engine.cost_model import Costs
from celu.engine.state import TrainerState
from celu.errors import CeluError
from celu.events import Event
from celu.session import Result
from celu.workset.workset import Workset
from chaos import run
from chaos.nemesis import KINDS, Fault, Scale, draw
from chaos.party_process import Party
from chaos.scenarios import Scenario, scenario

ONE_HOST, TWO_HOSTS = 2, 8  # scenarios whose method and codec are removed
NUM_SEEDS = 8


@pytest.fixture(autouse=True)
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_FILL_ROUNDS", 3)
    monkeypatch.setattr(auto, "_TRIAL_ROUNDS", (6, 8))
    # Computing takes no virtual time here, so it would find no time for local steps and try none.
    monkeypatch.setattr(Costs, "free_steps", lambda *_: (10, 10))


class Run(run.Run):
    """Records the guest's result; allows repeated rounds, because trials are rolled back."""

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
    assert any("rounds (" in choice.reason for choice in done.result.choices), "no trial was run"
    job = Job.model_validate(tomllib.loads(replay_toml(original.job, done.result.choices)))
    replay = Run(replace(original, job=job), seed, [])
    assert replay.problem is None
    return [
        f"seed {seed}: {name} of {party}"
        for party, (tensors, _) in done.final_states.items()
        for name, tensor in tensors.items()
        # The recorded similarities include the local steps of trials.
        if name != "similarity" and not torch.equal(tensor, replay.final_states[party][0][name])
    ]


@pytest.mark.parametrize("number", [ONE_HOST, TWO_HOSTS])
def test_a_tuned_run_with_faults_ends_like_a_replay_of_its_choices(number: int) -> None:
    found = [name for seed in range(NUM_SEEDS) for name in differing(number, seed)]
    assert not found


def test_an_incomplete_rollback_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets_the_table(self: TrainerState, modules: Any, optimizer: Any, _: Workset) -> None:
        for which, module in modules.items():
            module.load_state_dict(self.modules[which])
        optimizer.restore(self.optimizer)

    monkeypatch.setattr(TrainerState, "restore", forgets_the_table)
    assert any(differing(ONE_HOST, seed) for seed in range(NUM_SEEDS))
