"""Steps as CUDA graphs: the results are those without, and what cannot be captured is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import celu
from celu.engine.graphs import GraphOptions, Graphs
from celu.engine.optimizer import Optimizer
from celu.events import Event, Warned
from engine.test_on_a_gpu import on_device
from federation import Federation, federation
from slow.engine.test_resume import CASES
from twins import twin_federation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

METHODS = {
    "vanilla": {"method": celu.Method(R=1)},
    "local steps": {"method": celu.Method(W=3, R=3)},
    "cosine": {"method": celu.Method(W=3, R=3, weighting="cosine")},
    "depth 4, 4 bits": {"method": celu.Method(W=3, R=2, depth=4), "codec": "4bit"},
    "depth 2, no local steps": {"method": celu.Method(R=1, depth=2), "codec": "2bit"},
    "two hosts": {"hosts": {"a": 5, "b": 3}, "method": celu.Method(W=3, R=3)},
    "adam": {"optimizer": celu.Optimizer(name="adam", lr=0.01), "method": celu.Method(W=3, R=3)},
    "sgd": {"optimizer": celu.Optimizer(name="sgd", lr=0.05)},
    "a schedule": {
        "optimizer": celu.Optimizer(lr=0.05, schedule="cosine"),
        "method": celu.Method(W=3, R=3),
    },
}


def trained(fed: Federation, *, graphs: bool) -> tuple[dict[str, Tensor], list[str]]:
    """The weights after training on the GPU, and what the parties warned of."""
    moved = on_device(fed, rows_too=True)
    warnings: list[str] = []

    def record(event: Event) -> None:
        if isinstance(event, Warned):
            warnings.append(event.message)

    celu.simulate(
        moved.job,
        moved.guest,
        moved.hosts,
        callbacks=[record],
        host_callbacks={name: [record] for name in moved.hosts},
        graphs=graphs,
    )
    return {name: tensor.cpu() for name, tensor in moved.weights().items()}, warnings


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], rtol=2e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_with_graphs_ends_like_one_without(method: str) -> None:
    fed = federation(**{"rounds": 20, **METHODS[method]})
    with_graphs, warnings = trained(fed, graphs=True)
    assert not warnings
    assert_same(with_graphs, trained(fed, graphs=False)[0])
    again, _ = trained(fed, graphs=True)
    assert all(tensor.equal(again[name]) for name, tensor in with_graphs.items())


class Dropping(nn.Module):
    """A bottom of the user's own, with dropout."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.dropout = nn.Dropout(0.3)

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.dropout(self.inner(**inputs))
        return z


class Plain(Dropping):
    """The same without dropout."""

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.inner(**inputs)
        return z


class Reading(Dropping):
    """One that reads a value back from the device."""

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.inner(**inputs)
        return z * (2.0 if float(z.detach().sum()) > 1e9 else 1.0)


def with_bottom(fed: Federation, wrap: Callable[[nn.Module], nn.Module]) -> Federation:
    hosts = {n: dataclasses.replace(h, bottom=wrap(h.bottom)) for n, h in fed.hosts.items()}
    return Federation(fed.job, fed.guest, hosts)


def test_dropout_differs_in_every_step_and_is_that_without_graphs() -> None:
    fed = federation(rounds=20, method=celu.Method(W=3, R=3))
    with_graphs, warnings = trained(with_bottom(fed, Dropping), graphs=True)
    assert not warnings
    assert_same(with_graphs, trained(with_bottom(fed, Dropping), graphs=False)[0])
    without, _ = trained(with_bottom(fed, Plain), graphs=True)
    assert any(not torch.allclose(t, without[n], atol=1e-2) for n, t in with_graphs.items())


def test_a_module_that_reads_values_back_trains_without_graphs_and_the_record_says_so() -> None:
    fed = with_bottom(federation(rounds=12, method=celu.Method(W=3, R=3)), Reading)
    weights, warnings = trained(fed, graphs=True)
    assert any("is not captured as a CUDA graph" in warning for warning in warnings)
    assert_same(weights, trained(fed, graphs=False)[0])


def test_a_step_whose_results_differ_is_given_up() -> None:
    model = nn.Linear(3, 1, bias=False).cuda()
    optimizer = Optimizer([model], celu.Optimizer(name="sgd", lr=0.1), "guest", 10)
    messages: list[str] = []
    graphs = Graphs([model], optimizer, GraphOptions(True, messages.append))
    calls = 0

    def step(x: Tensor) -> list[Tensor]:
        nonlocal calls
        calls += 1  # a graph repeats what the call that was captured did
        return [x * calls]

    one = torch.ones(2, device="cuda")
    results = [float(graphs.run("a step", step, one)[0][0]) for _ in range(5)]
    assert messages and "its results differ" in messages[0]
    assert results == [1, 2, 4, 5, 6]  # the third call was captured first


@pytest.mark.parametrize("R", [1, 3])
def test_label_privacy_is_the_same_too(R: int) -> None:
    fed = twin_federation(rounds=20, method=celu.Method(W=3, R=R))
    with_graphs, warnings = trained(fed, graphs=True)
    assert not warnings
    assert_same(with_graphs, trained(fed, graphs=False)[0])


@pytest.mark.parametrize("case", ["changing", "depth 8", "compensated regression", "labels only"])
def test_other_runs_are_the_same_too(case: str) -> None:
    fed = CASES[case]()
    assert_same(trained(fed, graphs=True)[0], trained(fed, graphs=False)[0])


def test_a_run_resumes_on_a_gpu(tmp_path: Any) -> None:
    from celu.checkpoint.generations import Checkpoints

    def run(rounds: int, folder: str) -> dict[str, Tensor]:
        fed = federation(rounds=20, method=celu.Method(W=3, R=3, depth=2))
        moved = on_device(fed, rows_too=True)
        names = [moved.job.guest, *moved.hosts]
        checkpoints = {n: Checkpoints(tmp_path / folder / n) for n in names}

        def stop(event: Event) -> None:
            if getattr(event, "round", 0) >= rounds:
                raise KeyboardInterrupt

        try:
            celu.simulate(
                moved.job, moved.guest, moved.hosts, checkpoints=checkpoints, callbacks=[stop]
            )
        except BaseException as error:
            if rounds > 20:
                raise error
        return {name: tensor.cpu() for name, tensor in moved.weights().items()}

    whole = run(99, "whole")
    run(11, "stopped")
    assert_same(run(99, "stopped"), whole)
