"""Weight decay, clipping and rates: torch's numbers, and what they do to sparse embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import celu
from celu.engine.optimizer import Optimizer
from celu.errors import ConfigError

LR = 0.05


def model(*, sparse: bool) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(50, 7, sparse=sparse), nn.Flatten(), nn.Linear(21, 1))


def optimizer_of(module: nn.Module, **settings: Any) -> Optimizer:
    return Optimizer([module], celu.Optimizer(lr=LR, **settings), "guest", 20)


def backward(module: nn.Module, ids: Tensor) -> None:
    module(ids).square().mean().backward()


@pytest.mark.parametrize("clip_norm", [None, 0.02, 100.0])
@pytest.mark.parametrize(
    ("settings", "reference_class", "options"),
    [
        ({"name": "adagrad", "weight_decay": 0.1}, torch.optim.Adagrad, {"weight_decay": 0.1}),
        (
            {"name": "adagrad", "initial_accumulator": 0.1, "weight_decay": 0.1},
            torch.optim.Adagrad,
            {"initial_accumulator_value": 0.1, "weight_decay": 0.1},
        ),
        ({"name": "sgd", "weight_decay": 0.1}, torch.optim.SGD, {"weight_decay": 0.1}),
        (
            {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1},
            torch.optim.SGD,
            {"momentum": 0.9, "weight_decay": 0.1},
        ),
        ({"name": "adam", "weight_decay": 0.1}, torch.optim.Adam, {"weight_decay": 0.1}),
        ({"name": "adam"}, torch.optim.Adam, {}),
        ({"name": "adamw"}, torch.optim.AdamW, {}),
        ({"name": "adamw", "weight_decay": 0.3}, torch.optim.AdamW, {"weight_decay": 0.3}),
        ({"name": "adamw", "weight_decay": 0.0}, torch.optim.AdamW, {"weight_decay": 0.0}),
    ],
)
def test_updates_of_dense_parameters_equal_those_of_torch(
    settings: dict[str, Any],
    reference_class: Any,
    options: dict[str, float],
    clip_norm: float | None,
) -> None:
    ours, theirs = model(sparse=False), model(sparse=False)
    mine = optimizer_of(ours, clip_norm=clip_norm, **settings)
    reference = reference_class(theirs.parameters(), lr=LR, **options)
    for _ in range(20):
        ids = torch.randint(0, 50, (16, 3))
        backward(ours, ids)
        mine.step()
        backward(theirs, ids)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
        reference.step()
        theirs.zero_grad()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "adagrad", "weight_decay": 0.1},
        {"name": "sgd", "weight_decay": 0.1},
        {"name": "adamw", "weight_decay": 0.3},
        {"name": "adam", "weight_decay": 0.1},
        {"name": "adagrad", "weight_decay": 0.1, "clip_norm": 0.02},
        {"name": "adamw", "weight_decay": 0.3, "clip_norm": 0.02},
    ],
)
def test_sparse_embeddings_decay_in_the_rows_of_the_batch_only(settings: dict[str, Any]) -> None:
    ids = torch.tensor([[1, 2, 2], [2, 5, 5]])  # with repeats, whose gradients add up
    sparse, dense = model(sparse=True), model(sparse=False)
    before = dense[0].weight.detach().clone()
    for module in (sparse, dense):
        backward(module, ids)
        optimizer_of(module, **settings).step()
    used = torch.zeros(50, dtype=torch.bool)
    used[[1, 2, 5]] = True
    ours, reference = sparse[0].weight.detach(), dense[0].weight.detach()
    # SparseAdam adds its epsilon elsewhere than Adam.
    tolerance = 2e-3 if settings["name"].startswith("adam") else 1e-7
    torch.testing.assert_close(ours[used], reference[used], rtol=1e-6, atol=tolerance)
    assert ours[~used].equal(before[~used])
    assert not reference[~used].equal(before[~used])  # a dense table decays everywhere
    torch.testing.assert_close(sparse[2].weight, dense[2].weight)


@pytest.mark.parametrize("name", ["adagrad", "sgd", "adam", "adamw"])
@pytest.mark.parametrize("sparse", [True, False])
def test_embeddings_have_their_own_rate(name: Any, sparse: bool) -> None:
    def change(**rates: float) -> list[Tensor]:
        module = model(sparse=sparse)
        before = [p.detach().clone() for p in module.parameters()]
        settings = celu.Optimizer(name=name, weight_decay=0.0, **rates)
        optimizer = Optimizer([module], settings, "guest", 20)
        backward(module, torch.tensor([[1, 2, 3]]))
        optimizer.step()
        return [p.detach() - b for p, b in zip(module.parameters(), before, strict=True)]

    both = change(lr=0.01)
    embedding, *others = change(lr=0.01, embedding_lr=0.02)
    torch.testing.assert_close(embedding, 2 * both[0], rtol=1e-3, atol=1e-6)
    assert all(a.equal(b) for a, b in zip(others, both[1:], strict=True))


def test_a_state_with_an_own_rate_for_embeddings_is_restored() -> None:
    module = model(sparse=True)
    optimizer = optimizer_of(module, name="adamw", embedding_lr=0.2)
    backward(module, torch.tensor([[1, 2, 3]]))
    optimizer.step()
    weights, state = [p.detach().clone() for p in module.parameters()], optimizer.state()
    ends = []
    for _ in range(2):
        with torch.no_grad():
            for parameter, weight in zip(module.parameters(), weights, strict=True):
                parameter.copy_(weight)
        optimizer.restore(state)
        backward(module, torch.tensor([[2, 3, 4]]))
        optimizer.step()
        ends.append([p.detach().clone() for p in module.parameters()])
    assert all(a.equal(b) for a, b in zip(*ends, strict=True))


def test_momentum_with_sparse_embeddings_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.momentum: not supported with sparse"):
        optimizer_of(model(sparse=True), name="sgd", momentum=0.9)
