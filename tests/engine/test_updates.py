from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from celu.engine.updates import Adagrad, Sgd


@pytest.mark.parametrize(
    ("own", "torchs", "options", "sparse"),
    [
        (Adagrad, torch.optim.Adagrad, {"initial_accumulator_value": 0.0}, True),
        (Adagrad, torch.optim.Adagrad, {"initial_accumulator_value": 0.1}, True),
        (Sgd, torch.optim.SGD, {}, True),
        (Sgd, torch.optim.SGD, {"momentum": 0.9}, False),
    ],
)
def test_every_bit_is_that_of_torch(
    own: type[Adagrad | Sgd], torchs: Any, options: dict[str, float], sparse: bool
) -> None:
    torch.manual_seed(3)

    def model() -> nn.Sequential:
        return nn.Sequential(nn.Embedding(50, 7, sparse=sparse), nn.Flatten(), nn.Linear(21, 1))

    ours, theirs = model(), model()
    theirs.load_state_dict(ours.state_dict())
    mine = own(ours.parameters(), lr=0.07, **options)  # type: ignore[arg-type]
    reference = torchs(theirs.parameters(), lr=0.07, **options)
    for _ in range(20):
        ids = torch.randint(0, 50, (16, 3))  # with repeats, whose gradients add up
        for module, update in ((ours, mine.update), (theirs, reference.step)):
            module(ids).square().mean().backward()
            update()
            module.zero_grad(set_to_none=True)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
        kept, due = mine.state[a], reference.state[b]
        assert kept.keys() == due.keys()
        assert all(torch.equal(kept[name], due[name]) for name in due)
