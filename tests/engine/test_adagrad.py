from __future__ import annotations

import pytest
import torch
from torch import nn

from celu.engine.adagrad import Adagrad


@pytest.mark.parametrize("accumulator", [0.0, 0.1])
def test_every_bit_is_that_of_torch(accumulator: float) -> None:
    torch.manual_seed(3)

    def model() -> nn.Sequential:
        return nn.Sequential(nn.Embedding(50, 7, sparse=True), nn.Flatten(), nn.Linear(21, 1))

    ours, theirs = model(), model()
    theirs.load_state_dict(ours.state_dict())
    options = {"lr": 0.07, "initial_accumulator_value": accumulator}
    mine = Adagrad(ours.parameters(), **options)
    reference = torch.optim.Adagrad(theirs.parameters(), **options)
    for _ in range(20):
        ids = torch.randint(0, 50, (16, 3))  # with repeats, whose gradients add up
        for module, optimizer in ((ours, mine), (theirs, reference)):
            module(ids).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
        kept, due = mine.state[a], reference.state[b]
        assert kept.keys() == due.keys()
        assert all(torch.equal(kept[name], due[name]) for name in due)
