"""With `method = "auto"`, NaN or Inf in the first rounds is rolled back; later it ends the run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import celu
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.errors import NonFiniteError
from federation import (
    Federation,
    assert_same_bits,
    federation,
    train_in_memory,
    with_validation,
)

ROUNDS = 90


def auto(**job: Any) -> Federation:
    evaluation = celu.Evaluation(every=4, metric="loss")
    return federation(rounds=ROUNDS, method="auto", evaluation=evaluation, **job)


def test_the_best_model_of_rounds_that_are_rolled_back_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = with_validation(auto(codec="fp32", optimizer=celu.Optimizer(name="adagrad", lr=0.3)))
    chosen: list[tuple[str, int]] = []

    def record(event: celu.Event) -> None:
        if event.event == "choice" and "back_to" in event.fields:
            chosen.append(("rolled back", event.fields["round"]))
        if event.event == "evaluation" and event.fields["best"]:
            chosen.append(("best", event.fields["round"]))

    spoil(monkeypatch, "host", lambda count, R: count == 16)
    result = celu.simulate(fed.job, fed.guest, fed.hosts, callbacks=[record])
    back = chosen.index(("rolled back", 0))
    assert back > 0, "an evaluation that is rolled back was the best at the time"
    assert chosen[back + 1] == ("best", 4), "so the first one after it is the best again"
    assert result.best_round == chosen[-1][1]
    best = {e["round"]: e["loss"] for e in result.evaluations}[result.best_round]
    assert best == min(e["loss"] for e in result.evaluations)


def spoil(monkeypatch: pytest.MonkeyPatch, party: str, spoils: Callable[[int, int], bool]) -> None:
    """Set a party's weights to NaN after the updates for which `spoils(count, R)`."""
    trainer, method = {
        "guest": (GuestTrainer, "apply_update"),
        "host": (HostTrainer, "update"),
    }[party]
    original, count = getattr(trainer, method), [0]

    def update(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        count[0] += 1
        if spoils(count[0], self.workset.table.R):
            with torch.no_grad():
                for parameter in self._optimizer.parameters:
                    parameter.fill_(torch.nan)

    monkeypatch.setattr(trainer, method, update)


@pytest.mark.parametrize("codec", [{"codec": "fp32"}, {}], ids=["fp32", "chosen"])
@pytest.mark.parametrize("at", [3, 6, 16, 40])
@pytest.mark.parametrize("party", ["guest", "host"])
def test_weights_that_diverge_in_the_first_rounds_are_rolled_back(
    party: str, at: int, codec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = auto(**codec)
    again = copy.deepcopy(fed)
    reasons: list[str] = []

    def record(event: celu.Event) -> None:
        if event.event == "choice":
            reasons.append(event.fields["reason"])

    with monkeypatch.context() as patch:
        spoil(patch, party, lambda count, R: count == at)
        result = celu.simulate(fed.job, fed.guest, fed.hosts, timer=lambda: 0.0, callbacks=[record])
    assert result.rounds == ROUNDS
    assert any(reason.startswith("NaN or Inf: ") for reason in reasons)
    assert all(e["loss"] == e["loss"] for e in result.evaluations)
    assert [e["round"] for e in result.evaluations][-1] == ROUNDS
    again.job = again.job.model_copy(
        update={"choices": result.choices, "method": again.job.method.model_copy(
            update={"auto": False})}
    )  # fmt: skip
    assert_same_bits(train_in_memory(again), fed.weights())


@pytest.mark.parametrize("party", ["guest", "host"])
def test_weights_that_diverge_with_the_gentlest_settings_end_the_run(
    party: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, party, lambda count, R: count % 10 == 5)
    fed = auto()
    with pytest.raises(NonFiniteError, match="with the gentlest settings, too; lower"):
        celu.simulate(fed.job, fed.guest, fed.hosts, timer=lambda: 0.0)


@pytest.mark.parametrize("party", ["guest", "host"])
def test_weights_that_diverge_later_end_the_run(
    party: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, party, lambda count, R: count == ROUNDS)  # 16 rounds are repeated
    fed = auto(codec="fp32")
    with pytest.raises(NonFiniteError, match="NaN or Inf"):
        celu.simulate(fed.job, fed.guest, fed.hosts, timer=lambda: 0.0)
