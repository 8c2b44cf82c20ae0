"""How often training waits for a device. None is needed: its numbers are here after a wait only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

import celu
from celu.engine import observer, round_report
from celu.engine.readback import Readback
from celu.events import Event, RoundDone
from federation import federation

ROUNDS = 14


class Slow(Readback):
    """Numbers that a device has computed once somebody has waited for them, or for later ones."""

    number = 0  # of those that were asked for
    computed = 0
    waits: list[int] = []  # how many had been asked for at each

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors)
        Slow.number += 1
        self.number = Slow.number

    @property
    def is_ready(self) -> bool:
        return self.number <= Slow.computed

    def wait(self) -> None:
        Slow.waits.append(Slow.number)
        Slow.computed = max(Slow.computed, self.number)


@pytest.fixture(autouse=True)
def slow_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "number", 0)
    monkeypatch.setattr(Slow, "computed", 0)
    monkeypatch.setattr(Slow, "waits", [])
    monkeypatch.setattr(round_report, "Readback", Slow)


def trained(*, every: int = 100, **terms: Any) -> list[int]:
    """The rounds that the guest reported."""
    fed = federation(rounds=ROUNDS, evaluation=celu.Evaluation(every=every, metric="loss"), **terms)
    reported: list[int] = []

    def record(event: Event) -> None:
        if isinstance(event, RoundDone):
            reported.append(event.round)

    celu.simulate(fed.job, fed.guest, fed.hosts, callbacks=[record])
    return reported


def test_no_round_waits_and_the_end_waits_once() -> None:
    assert trained(hosts={}) == list(range(1, ROUNDS + 1))
    assert Slow.waits == [ROUNDS]


@pytest.mark.parametrize("method", [celu.Method(R=1, depth=2), celu.Method(W=3, R=3)])
def test_each_party_waits_once_at_the_end(method: celu.Method) -> None:
    assert trained(hosts={"a": 5, "b": 3}, method=method) == list(range(1, ROUNDS + 1))
    assert len(Slow.waits) <= 3  # a later party's numbers may be here when it asks
    assert min(Slow.waits) > 3 * (ROUNDS - 2)


def test_an_evaluation_waits_once_for_all_rounds_before_it() -> None:
    trained(hosts={}, every=5)
    assert Slow.waits == [5, 10, ROUNDS]


def test_a_run_without_end_waits_for_the_oldest_of_many_reports_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer, "_MAX_PENDING", 4)
    trained(hosts={})
    assert Slow.waits[:3] == [5, 6, 7] and Slow.waits[-1] == ROUNDS
