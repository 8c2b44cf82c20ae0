"""Learning rates are those of torch's schedulers, and a function of the round alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import celu
from celu.engine.learning_rate import LearningRate
from celu.errors import ConfigError
from federation import federation, train_in_memory

LR, ROUNDS = 0.07, 40


def rates_of_torch(make: Any, warmup: int) -> list[float]:
    """The rate at each step of a torch scheduler, after torch's linear warm-up."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = make(optimizer)
    if warmup:
        first = lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup)
        # Made again, since both schedulers read the rates that they start from.
        scheduler = lr_scheduler.SequentialLR(optimizer, [first, make(optimizer)], [warmup])
    rates = []
    for _ in range(ROUNDS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # within torch's SequentialLR
@pytest.mark.parametrize("warmup", [0, 1, 6])
@pytest.mark.parametrize(
    ("settings", "make"),
    [
        ({}, lambda o, T: lr_scheduler.ConstantLR(o, 1.0)),
        ({"schedule": "cosine"}, lr_scheduler.CosineAnnealingLR),
        (
            {"schedule": "cosine", "final_factor": 0.1},
            lambda o, T: lr_scheduler.CosineAnnealingLR(o, T, eta_min=0.1 * LR),
        ),
        ({"schedule": "linear"}, lambda o, T: lr_scheduler.LinearLR(o, 1.0, 0.0, T)),
        (
            {"schedule": "linear", "final_factor": 0.25},
            lambda o, T: lr_scheduler.LinearLR(o, 1.0, 0.25, T),
        ),
        ({"schedule": "step", "step_rounds": 9}, lambda o, T: lr_scheduler.StepLR(o, 9)),
        (
            {"schedule": "step", "step_rounds": 5, "step_factor": 0.5},
            lambda o, T: lr_scheduler.StepLR(o, 5, 0.5),
        ),
    ],
)
def test_the_rate_of_each_round_is_that_of_torchs_scheduler(
    settings: dict[str, Any], make: Any, warmup: int
) -> None:
    optimizer = celu.Optimizer(lr=LR, warmup_rounds=warmup, **settings)
    rate = LearningRate(optimizer, "guest", ROUNDS)
    ours = [rate.base * rate.factor(round_) for round_ in range(ROUNDS)]
    theirs = rates_of_torch(lambda o: make(o, ROUNDS - warmup), warmup)
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_without_a_schedule_the_rate_is_the_contracts_exactly() -> None:
    rate = LearningRate(celu.Optimizer(lr=LR), "guest", ROUNDS)
    assert {rate.base * rate.factor(round_) for round_ in range(ROUNDS)} == {LR}


def test_parties_and_embeddings_may_have_rates_of_their_own() -> None:
    settings = celu.Optimizer(lr=0.1, party_lr={"weather": 0.2}, embedding_lr=0.3)
    weather, airline = (LearningRate(settings, name, 1) for name in ("weather", "airline"))
    assert (weather.base, weather.base_of_embeddings) == (0.2, 0.3)
    assert (airline.base, airline.base_of_embeddings) == (0.1, 0.3)
    alone = LearningRate(celu.Optimizer(lr=0.1, party_lr={"weather": 0.2}), "weather", 1)
    assert alone.base_of_embeddings == 0.2


def test_a_run_in_epochs_that_ends_before_its_warmup_is_refused() -> None:
    settings = celu.Optimizer(warmup_rounds=6)
    fed = federation(rounds=None, epochs=1, optimizer=settings)  # 6 rounds
    with pytest.raises(ConfigError, match=r"optimizer.warmup_rounds: .* 6 rounds, got 6"):
        celu.simulate(fed.job, fed.guest, fed.hosts)


def test_every_party_reports_the_rate_of_each_round() -> None:
    settings = celu.Optimizer(
        lr=0.1, party_lr={"host": 0.2}, schedule="linear", warmup_rounds=3, embedding_lr=0.5
    )
    fed = federation(optimizer=settings, method=celu.Method(R=3, W=3, depth=3))
    rates: dict[str, list[float]] = {"guest": [], "host": []}

    def record(party: str, event: celu.Event) -> None:
        if event.event == "round":
            rates[party].append(event.fields["lr"])

    celu.simulate(
        fed.job,
        fed.guest,
        fed.hosts,
        callbacks=[partial(record, "guest")],
        host_callbacks={"host": [partial(record, "host")]},
    )
    for party, base in (("guest", 0.1), ("host", 0.2)):
        factor = LearningRate(settings, party, 14).factor
        assert rates[party] == [base * factor(round_) for round_ in range(14)]


@pytest.mark.parametrize("order", ["overlapped", "after-update"])
@pytest.mark.parametrize("depth", [1, 3])
def test_updates_and_local_steps_use_the_rate_of_their_round(order: Any, depth: int) -> None:
    # After five rounds the rate is so small that no update changes a weight.
    settings = celu.Optimizer(lr=0.05, schedule="step", step_rounds=5, step_factor=1e-30)
    method = celu.Method(R=4, W=3, depth=depth, local_step_order=order)
    longer, shorter = (
        train_in_memory(federation(rounds=rounds, optimizer=settings, method=method))
        for rounds in (12, 5)
    )
    for name, weight in longer.items():
        torch.testing.assert_close(weight, shorter[name], rtol=0, atol=1e-25)
