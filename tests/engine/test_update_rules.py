"""Our update rules match torch's bit for bit, and a run does not load modules late."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import pytest
import torch
from torch import nn

import celu
from celu.engine.gradients import ids_of_rows
from celu.engine.optimizer import Optimizer, flatten_state
from celu.engine.update_rules import Adagrad, Sgd
from celu.errors import CheckpointError, ModelError

LR = 0.07


@pytest.mark.parametrize(
    ("own", "option", "reference_class", "options", "sparse"),
    [
        (Adagrad, 0.0, torch.optim.Adagrad, {"initial_accumulator_value": 0.0}, True),
        (Adagrad, 0.1, torch.optim.Adagrad, {"initial_accumulator_value": 0.1}, True),
        (Sgd, 0.0, torch.optim.SGD, {}, True),
        (Sgd, 0.9, torch.optim.SGD, {"momentum": 0.9}, False),
    ],
)
def test_updates_equal_those_of_torch_bit_for_bit(
    own: type[Adagrad | Sgd],
    option: float,
    reference_class: Any,
    options: dict[str, float],
    sparse: bool,
) -> None:
    torch.manual_seed(3)

    def model() -> nn.Sequential:
        return nn.Sequential(nn.Embedding(50, 7, sparse=sparse), nn.Flatten(), nn.Linear(21, 1))

    ours, theirs = model(), model()
    theirs.load_state_dict(ours.state_dict())
    mine = own(list(ours.parameters()), LR, option)
    reference = reference_class(theirs.parameters(), lr=LR, **options)
    for _ in range(20):
        ids = torch.randint(0, 50, (16, 3))  # with repeats, whose gradients add up
        for module, update in ((ours, mine.step), (theirs, reference.step)):
            module(ids).square().mean().backward()
            update()
            module.zero_grad(set_to_none=True)
    state = mine.state()
    for index, (a, b) in enumerate(zip(ours.parameters(), theirs.parameters(), strict=True)):
        assert torch.equal(a, b)
        values, expected = state.get(index, {}), reference.state[b]
        assert values.keys() == expected.keys() - {"step"}  # AdaGrad without decay needs no step
        assert all(torch.equal(values[name], expected[name]) for name in values)


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_an_incomplete_optimizer_state_is_refused(name: Literal["adagrad", "adam"]) -> None:
    layer = nn.Linear(2, 1)
    optimizer = Optimizer([layer], celu.Optimizer(name=name, lr=LR), "guest", 1)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    flat = flatten_state(optimizer.state())
    assert flatten_state(optimizer.unflatten_state(flat)).keys() == flat.keys()
    flat.pop(next(iter(flat)))
    with pytest.raises(CheckpointError, match="is incomplete"):
        optimizer.unflatten_state(flat)


def output_of(code: str) -> list[str]:
    """The words that a new process prints; in this one everything is already imported."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return done.stdout.split()


def test_training_does_not_import_torchs_compiler() -> None:
    code = (
        "import sys, torch, celu; from celu.engine.optimizer import Optimizer; "
        "layer = torch.nn.Linear(2, 1); "
        "one = Optimizer([layer], celu.Optimizer(name='adagrad', lr=0.1), 'guest', 1); "
        "layer(torch.ones(1, 2)).sum().backward(); one.step(); one.restore(one.state()); "
        "print('torch._dynamo' in sys.modules)"
    )
    assert output_of(code) == ["False"]


def test_no_module_is_imported_during_a_round() -> None:
    # It would be measured as part of the round.
    code = (
        "import sys; from chaos.scenarios import scenario; from celu.simulation import simulate; "
        "one = scenario(2); counts = []; names = ('started', 'round'); "
        "count = lambda event: event.event in names and counts.append(len(sys.modules)); "
        "hosts = {name: one.host(name) for name in one.job.hosts}; "
        "simulate(one.job, one.guest(), hosts, callbacks=[count]); "
        "print(len(counts), len(set(counts)))"
    )
    assert output_of(code) == ["4", "1"]


def test_ids_that_int32_cannot_number_are_refused() -> None:
    def gradient(rows: int) -> torch.Tensor:
        ids = torch.tensor([[rows - 1, 3]])
        return torch.sparse_coo_tensor(ids, torch.ones(2, 1), (rows, 1))

    largest = 2**31 - 1
    ids = ids_of_rows(gradient(largest))
    assert ids.dtype == torch.int32 and ids.tolist() == [largest - 1, 3]
    with pytest.raises(ModelError, match="at most 2,147,483,647 rows on a GPU, got one of 2,147"):
        ids_of_rows(gradient(largest + 1))
