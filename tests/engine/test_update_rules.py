from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import pytest
import torch
from torch import nn

import celu
from celu.engine.optimizer import Optimizer, remembered
from celu.engine.update_rules import Adagrad, Sgd
from celu.errors import CheckpointError

LR = 0.07


@pytest.mark.parametrize(
    ("own", "given", "torchs", "options", "sparse"),
    [
        (Adagrad, 0.0, torch.optim.Adagrad, {"initial_accumulator_value": 0.0}, True),
        (Adagrad, 0.1, torch.optim.Adagrad, {"initial_accumulator_value": 0.1}, True),
        (Sgd, 0.0, torch.optim.SGD, {}, True),
        (Sgd, 0.9, torch.optim.SGD, {"momentum": 0.9}, False),
    ],
)
def test_every_bit_is_that_of_torch(
    own: type[Adagrad | Sgd], given: float, torchs: Any, options: dict[str, float], sparse: bool
) -> None:
    torch.manual_seed(3)

    def model() -> nn.Sequential:
        return nn.Sequential(nn.Embedding(50, 7, sparse=sparse), nn.Flatten(), nn.Linear(21, 1))

    ours, theirs = model(), model()
    theirs.load_state_dict(ours.state_dict())
    mine = own(list(ours.parameters()), LR, given)
    reference = torchs(theirs.parameters(), lr=LR, **options)
    for _ in range(20):
        ids = torch.randint(0, 50, (16, 3))  # with repeats, whose gradients add up
        for module, update in ((ours, mine.update), (theirs, reference.step)):
            module(ids).square().mean().backward()
            update()
            module.zero_grad(set_to_none=True)
    memory = mine.memory()
    for index, (a, b) in enumerate(zip(ours.parameters(), theirs.parameters(), strict=True)):
        assert torch.equal(a, b)
        kept, due = memory.get(index, {}), reference.state[b]
        assert kept.keys() == due.keys() - {"step"}  # nobody asks AdaGrad how many
        assert all(torch.equal(kept[name], due[name]) for name in kept)


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_a_part_of_what_is_remembered_is_refused(name: Literal["adagrad", "adam"]) -> None:
    layer = nn.Linear(2, 1)
    optimizer = Optimizer([layer], celu.Optimizer(name=name, lr=LR))
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    whole = remembered(optimizer.state())
    assert remembered(optimizer.state_of(whole)).keys() == whole.keys()
    whole.pop(next(iter(whole)))
    with pytest.raises(CheckpointError, match="got a part of it"):
        optimizer.state_of(whole)


def told_by(code: str) -> list[str]:
    """What a process of its own prints, for in this one everything is loaded."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.split()


def test_a_run_does_not_wait_for_torch_s_compiler() -> None:
    code = (
        "import sys, torch, celu; from celu.engine.optimizer import Optimizer; "
        "layer = torch.nn.Linear(2, 1); "
        "one = Optimizer([layer], celu.Optimizer(name='adagrad', lr=0.1)); "
        "layer(torch.ones(1, 2)).sum().backward(); one.step(); one.restore(one.state()); "
        "print('torch._dynamo' in sys.modules)"
    )
    assert told_by(code) == ["False"]


def test_nothing_is_loaded_in_a_round() -> None:
    # It would be taken for the time that a round takes.
    code = (
        "import sys; from chaos.scenarios import scenario; from celu.simulation import simulate; "
        "one = scenario(2); seen = []; told = ('started', 'round'); "
        "note = lambda event: event.event in told and seen.append(len(sys.modules)); "
        "simulate(one.job, one.guest(), {n: one.host(n) for n in one.job.hosts}, callbacks=[note]); "
        "print(len(seen), len(set(seen)))"
    )
    assert told_by(code) == ["4", "1"]
