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
from celu.events import Event, RoundDone, Warned
from emulated_graphs import noting_captures
from engine.test_on_a_gpu import on_device
from federation import Federation, federation
from slow.engine.test_resume import CASES
from twins import twin_federation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

METHODS: dict[str, dict[str, Any]] = {
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

# The steps that are captured, of each party in a sorted list.
_HOST, _GUEST = ["Z", "the update"], ["the exchange", "the update"]
_STALE, _LOCAL = ["Z", "a stale update"], ["a local step", *_GUEST]
CAPTURED = {
    "vanilla": [_HOST, _GUEST],
    "local steps": [_STALE, _LOCAL],
    "cosine": [_STALE, _LOCAL],
    "depth 4, 4 bits": [_STALE, _LOCAL],
    "depth 2, no local steps": [_STALE, _GUEST],
    "two hosts": [_STALE, _STALE, _LOCAL],
    "adam": [_STALE, _LOCAL],
    "sgd": [_HOST, _LOCAL],
    "a schedule": [_STALE, _LOCAL],
}
CAPTURED_WITH_TWIN = {1: [_HOST, _GUEST, _GUEST], 3: [_STALE, _LOCAL, _GUEST]}


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
    with noting_captures() as captured:
        with_graphs, warnings = trained(fed, graphs=True)
    assert not warnings
    assert captured == CAPTURED[method]
    with noting_captures() as captured:
        assert_same(with_graphs, trained(fed, graphs=False)[0])
    assert not any(captured)
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


@pytest.mark.parametrize(("R", "method"), [(1, "vanilla"), (3, "local steps")])
def test_dropout_differs_in_every_step_and_is_that_without_graphs(R: int, method: str) -> None:
    fed = federation(rounds=20, method=celu.Method(W=3, R=R))
    with noting_captures() as captured:
        with_graphs, warnings = trained(with_bottom(fed, Dropping), graphs=True)
    assert not warnings
    assert captured == CAPTURED[method]
    assert_same(with_graphs, trained(with_bottom(fed, Dropping), graphs=False)[0])
    without, _ = trained(with_bottom(fed, Plain), graphs=True)
    assert any(not torch.allclose(t, without[n], atol=1e-2) for n, t in with_graphs.items())


@pytest.mark.parametrize("R", [1, 3])
def test_a_module_that_reads_values_back_trains_without_graphs_and_the_record_says_so(
    R: int,
) -> None:
    fed = with_bottom(federation(rounds=12, method=celu.Method(W=3, R=R)), Reading)
    with noting_captures() as captured:
        weights, warnings = trained(fed, graphs=True)
    assert any("is not captured as a CUDA graph" in warning for warning in warnings)
    assert captured == [[], CAPTURED["vanilla" if R == 1 else "local steps"][1]]  # the guest's
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


@pytest.mark.parametrize("batch", [3, 4, 5])
def test_a_step_that_branches_in_python_on_one_of_the_first_batches_is_given_up(
    batch: int,
) -> None:
    model = nn.Linear(3, 1, bias=False).cuda()
    optimizer = Optimizer([model], celu.Optimizer(name="sgd", lr=0.1), "guest", 10)
    messages: list[str] = []
    graphs = Graphs([model], optimizer, GraphOptions(True, messages.append))
    now = 0  # such as an epoch that a module counts

    def step(x: Tensor) -> list[Tensor]:
        return [x * (2 if now > batch else 1)]

    one, results = torch.ones(2, device="cuda"), []
    for _ in range(8):
        now += 1
        results.append(float(graphs.run("a step", step, one)[0][0]))
    is_seen = batch < 5  # a later one is not
    assert results == [2 if is_seen and number > batch else 1 for number in range(1, 9)]
    assert bool(messages) == is_seen and graphs.has("a step") != is_seen


class Drawing(Dropping):
    """One that draws from the CPU's random numbers."""

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.inner(**inputs)
        return z * (1 + float(torch.rand(())))


class Replacing(Dropping):
    """One that replaces a buffer by another tensor, and uses it."""

    total: Tensor

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.register_buffer("total", torch.ones(()))

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.inner(**inputs)
        self.total = self.total * 0.9
        return z * (1 + self.total)


@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize(
    ("wrap", "why"),
    [(Drawing, "draws random numbers on the CPU"), (Replacing, "replaces a parameter or a buffer")],
)
def test_a_module_that_does_what_a_graph_does_not_repeat_trains_as_without_graphs(
    wrap: Callable[[nn.Module], nn.Module], why: str, R: int
) -> None:
    fed = with_bottom(federation(rounds=12, method=celu.Method(W=3, R=R)), wrap)
    weights, warnings = trained(fed, graphs=True)
    assert any(why in warning for warning in warnings)
    assert_same(weights, trained(fed, graphs=False)[0])


class Normed(Dropping):
    """One with running statistics, which a forward pass writes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.norm(self.inner(**inputs))
        return z


@pytest.mark.parametrize(("R", "method"), [(1, "vanilla"), (3, "local steps")])
def test_running_statistics_are_those_without_graphs(R: int, method: str) -> None:
    # A bias before a norm has a gradient of rounding errors, which AdaGrad would scale to 1.
    optimizer = celu.Optimizer(lr=0.05, initial_accumulator=0.1)
    fed = federation(rounds=20, method=celu.Method(W=3, R=R), optimizer=optimizer)
    fed = with_bottom(fed, Normed)
    with noting_captures() as captured:
        weights, warnings = trained(fed, graphs=True)
    assert not warnings and captured == CAPTURED[method]
    assert_same(weights, trained(fed, graphs=False)[0])


def test_memory_does_not_grow_after_a_capture_that_failed() -> None:
    """What a stream of copies has used is used again: no allocator waits for a capture's end."""
    fed = on_device(
        with_bottom(federation(rounds=320, method=celu.Method(W=3, R=1)), Reading), rows_too=False
    )
    active: dict[int, int] = {}  # bytes, with those that are free once a stream has used them

    def record(event: Event) -> None:
        if isinstance(event, RoundDone):
            active[event.round] = torch.cuda.memory_stats()["active_bytes.all.current"]

    warnings: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Warned):
            warnings.append(event.message)

    celu.simulate(
        fed.job,
        fed.guest,
        fed.hosts,
        callbacks=[record, note],
        host_callbacks={name: [note] for name in fed.hosts},
    )
    assert any("is not captured as a CUDA graph" in warning for warning in warnings)
    early, late = (
        max(size for round_, size in active.items() if first <= round_ < first + 100)
        for first in (20, 220)
    )
    assert late - early < 100_000  # the rows of 200 batches take four times that


def test_dropout_draws_after_a_capture_that_failed() -> None:
    """The generator of the device is not left as one that a graph uses."""
    fed = with_bottom(federation(rounds=12, method=celu.Method(W=3, R=3)), DroppingAndReading)
    weights, warnings = trained(fed, graphs=True)
    assert any("is not captured as a CUDA graph" in warning for warning in warnings)
    assert_same(weights, trained(fed, graphs=False)[0])
    torch.cuda.manual_seed(1)
    draws = [torch.rand(1000, device="cuda") for _ in range(2)]
    torch.cuda.manual_seed(1)
    assert draws[0].equal(torch.rand(1000, device="cuda")) and not draws[0].equal(draws[1])


class DroppingAndReading(Dropping):
    """One that draws random numbers before it reads a value back from the device."""

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.dropout(self.inner(**inputs))
        return z * (2.0 if float(z.detach().sum()) > 1e9 else 1.0)


@pytest.mark.parametrize("R", [1, 3])
def test_a_capture_that_fails_once_is_tried_again(R: int, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: set[Graphs] = set()
    record = Graphs._record

    def failing(self: Graphs, step: Any, inputs: Any) -> Any:
        if self not in failed:
            failed.add(self)
            raise RuntimeError("another thread used the device")
        return record(self, step, inputs)

    fed = federation(rounds=20, method=celu.Method(W=3, R=R))
    expected, _ = trained(fed, graphs=False)
    monkeypatch.setattr(Graphs, "_record", failing)
    with noting_captures() as captured:
        weights, warnings = trained(fed, graphs=True)
    assert failed and not warnings
    assert captured == CAPTURED["vanilla" if R == 1 else "local steps"]
    assert_same(weights, expected)


@pytest.mark.parametrize("R", [1, 3])
def test_label_privacy_is_the_same_too(R: int) -> None:
    fed = twin_federation(rounds=20, method=celu.Method(W=3, R=R))
    with noting_captures() as captured:
        with_graphs, warnings = trained(fed, graphs=True)
    assert not warnings
    assert captured == CAPTURED_WITH_TWIN[R]
    assert_same(with_graphs, trained(fed, graphs=False)[0])


@pytest.mark.parametrize("case", ["changing", "depth 8", "compensated regression", "labels only"])
def test_other_runs_are_the_same_too(case: str) -> None:
    fed = CASES[case]()
    with noting_captures() as captured:
        weights, _ = trained(fed, graphs=True)
    assert any(captured)
    assert_same(weights, trained(fed, graphs=False)[0])


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
