"""Steps that cannot be captured as CUDA graphs. No device is needed: nothing is captured here."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import celu
from celu.engine.graphs import Graphs
from celu.events import Event, Warned
from federation import federation


@pytest.fixture(autouse=True)
def no_capture_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parties on a CPU try to capture their steps, in vain."""
    init = Graphs.__init__

    def enabled(self: Graphs, *arguments: Any) -> None:
        init(self, *arguments)
        self._enabled = arguments[2].enabled

    def fails(self: Graphs, *_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Graphs, "__init__", enabled)
    monkeypatch.setattr(Graphs, "_record", fails)
    monkeypatch.setattr(Graphs, "_execute", lambda self, step, inputs: step(*inputs))


@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_run_is_the_same_and_says_once_for_each_step_why(R: int, depth: int) -> None:
    fed = federation(rounds=12, method=celu.Method(W=3, R=R, depth=depth))
    other = copy.deepcopy(fed)
    warnings: list[str] = []

    def record(event: Event) -> None:
        if isinstance(event, Warned):
            warnings.append(event.message)

    celu.simulate(
        fed.job,
        fed.guest,
        fed.hosts,
        callbacks=[record],
        host_callbacks={name: [record] for name in fed.hosts},
    )
    assert warnings and len(set(warnings)) == len(warnings)
    assert all("not captured as a CUDA graph" in text for text in warnings)
    assert all("operation not permitted" in text for text in warnings)
    celu.simulate(other.job, other.guest, other.hosts, graphs=False)
    for name, tensor in fed.weights().items():
        assert tensor.equal(other.weights()[name])
