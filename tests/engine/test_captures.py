"""Captured steps are compared with the steps as they are. No device is needed: see `emulated`.

A graph on a GPU would not count its replays, as a module does here. It stands for all that a graph
repeats and the step does not.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import celu
from celu.engine import step_snapshot
from celu.engine.graphs import GraphOptions, Graphs
from celu.engine.optimizer import Optimizer
from celu.events import Event, Warned
from emulated_graphs import EmulatedGraph, emulate_graphs, noting_captures
from engine.test_graphs import CAPTURED, CAPTURED_WITH_TWIN, METHODS
from federation import Federation, assert_same_bits, federation
from twins import twin_federation


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parties on a CPU capture their steps."""
    emulate_graphs(monkeypatch)


def trained(fed: Federation, *, graphs: bool = True) -> tuple[dict[str, Tensor], list[str]]:
    """The weights after training, and what the parties warned of."""
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
        graphs=graphs,
    )
    return fed.weights(), warnings


# Adam's rule for sparse gradients on a CPU does not work in place.
@pytest.mark.parametrize("method", [name for name in METHODS if name != "adam"])
def test_a_run_with_graphs_has_the_bits_of_one_without(method: str) -> None:
    terms: dict[str, Any] = {"rounds": 20, **METHODS[method]}
    with noting_captures() as captured:
        weights, warnings = trained(federation(**terms))
    assert not warnings
    assert captured == CAPTURED[method]
    assert_same_bits(weights, trained(federation(**terms), graphs=False)[0])


@pytest.mark.parametrize("R", [1, 3])
def test_a_run_with_a_twin_has_the_bits_of_one_without_graphs(R: int) -> None:
    terms: dict[str, Any] = {"rounds": 20, "method": celu.Method(W=3, R=R)}
    with noting_captures() as captured:
        weights, warnings = trained(twin_federation(**terms))
    assert not warnings
    assert captured == CAPTURED_WITH_TWIN[R]
    assert_same_bits(weights, trained(twin_federation(**terms), graphs=False)[0])


class Other(nn.Module):
    """A bottom of which one replay is something else."""

    def __init__(self, inner: nn.Module, other_replay: int) -> None:
        super().__init__()
        self.inner = inner
        self.replays, self.other_replay = 0, other_replay

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.inner(**inputs)
        self.replays += EmulatedGraph.is_replaying
        return z * 1.5 if EmulatedGraph.is_replaying and self.replays == self.other_replay else z


@pytest.mark.parametrize("replay", [1, 2, 3, 4])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("R", [1, 3])
def test_a_step_that_differs_on_one_of_the_first_batches_is_given_up(
    R: int, depth: int, replay: int
) -> None:
    terms: dict[str, Any] = {"rounds": 12, "method": celu.Method(W=3, R=R, depth=depth)}
    fed = federation(**terms)
    expected, _ = trained(federation(**terms), graphs=False)
    hosts = {
        n: dataclasses.replace(h, bottom=Other(h.bottom, replay)) for n, h in fed.hosts.items()
    }
    _, warnings = trained(Federation(fed.job, fed.guest, hosts))
    assert any("its results differ" in text for text in warnings)
    assert len(set(warnings)) == len(warnings)
    assert_same_bits(fed.weights(), expected)


def test_rounds_in_flight_do_not_use_the_autograd_graph_of_a_step_that_was_given_up() -> None:
    """Z of a round that is sent while another waits for its update is given up."""
    from celu.engine.host_trainer import HostTrainer
    from celu.transport.message import Kind, Message

    def updated(replay: int | None) -> dict[str, Tensor]:
        fed = federation(method=celu.Method(R=1, depth=2))
        host = fed.hosts["host"]
        bottom = host.bottom if replay is None else Other(host.bottom, replay)
        enabled = GraphOptions(replay is not None, lambda message: None)
        trainer = HostTrainer(
            "host", dataclasses.replace(host, bottom=bottom), fed.job, graphs=enabled
        )

        def answer(sent: Message) -> None:
            dz_BD = torch.ones(fed.job.batch_size, 6) / 100
            message = Message(Kind.DERIVATIVE, sent.round, tensor=dz_BD, row_digest=sent.row_digest)
            trainer.update(sent.round, message)

        for round_ in range(3):
            answer(trainer.compute_activation(round_))
        sent = [trainer.compute_activation(round_) for round_ in (3, 4)]
        for message in sent:
            answer(message)
        trainer.close()
        return {name: p.detach().clone() for name, p in host.bottom.named_parameters()}

    # The fourth replay is that of round 4: two of round 2 are Z and what its update needs of it.
    for replay in (3, 4, 5):
        assert_same_bits(updated(replay), updated(None))


def test_each_captured_step_is_executed_as_it_is_for_two_and_then_three_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executed: dict[str, int] = {}
    run = Graphs.run

    def counted(self: Graphs, name: str, step: Any, *inputs: Tensor, **options: Any) -> Any:
        def execute(self: Graphs, step: Any, inputs: Any) -> list[Tensor]:
            executed[name] = executed.get(name, 0) + 1
            return step(*inputs)  # type: ignore[no-any-return]

        monkeypatch.setattr(Graphs, "_execute", execute)
        return run(self, name, step, *inputs, **options)

    monkeypatch.setattr(Graphs, "run", counted)
    trained(federation(rounds=20, hosts={}, method=celu.Method(R=1)))
    assert executed == {"the exchange": 5, "the update": 5}


@pytest.mark.parametrize("method", [celu.Method(R=1), celu.Method(W=3, R=3)])
def test_without_the_memory_to_compare_results_steps_stay_as_they_are(
    method: celu.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, taken = Graphs._snapshot, []

    def fails(self: Graphs) -> Any:
        taken.append(1)
        if len(taken) % 3 == 0:
            raise torch.OutOfMemoryError("out of memory")
        return snapshot(self)

    monkeypatch.setattr(Graphs, "_snapshot", fails)
    weights, warnings = trained(federation(rounds=12, method=method))
    assert any("not enough memory" in text for text in warnings)
    assert_same_bits(weights, trained(federation(rounds=12, method=method), graphs=False)[0])


class Dropping(nn.Module):
    """A bottom with dropout."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.dropout = inner, nn.Dropout(0.3)

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.dropout(self.inner(**inputs))
        return z


class Normed(nn.Module):
    """A bottom with running statistics, which a forward pass writes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm = inner, nn.BatchNorm1d(6)

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.norm(self.inner(**inputs))
        return z


class Drawing(Dropping):
    """One that draws from Python's random numbers."""

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.inner(**inputs)
        return z * (1 + random.random())


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


class Moving(Replacing):
    """One that gives a buffer other memory."""

    def forward(self, **inputs: Tensor) -> Tensor:
        z: Tensor = self.inner(**inputs)
        self.total.data = self.total.data * 0.9
        return z * (1 + self.total)


@pytest.mark.parametrize("R", [1, 3])
def test_steps_that_write_running_statistics_are_captured(R: int) -> None:
    def wrapped() -> Federation:
        fed = federation(rounds=12, method=celu.Method(W=3, R=R))
        hosts = {n: dataclasses.replace(h, bottom=Normed(h.bottom)) for n, h in fed.hosts.items()}
        return Federation(fed.job, fed.guest, hosts)

    with noting_captures() as captured:
        weights, warnings = trained(wrapped())
    assert not warnings
    assert captured == CAPTURED["vanilla" if R == 1 else "local steps"]
    assert_same_bits(weights, trained(wrapped(), graphs=False)[0])


@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize(
    ("wrap", "why"),
    [
        (Dropping, "it draws random numbers on the CPU"),
        (Drawing, "it draws random numbers on the CPU"),
        (Replacing, "it replaces a parameter or a buffer"),
        (Moving, "it replaces a parameter or a buffer"),
    ],
)
def test_a_module_that_does_what_a_graph_does_not_repeat_trains_as_without_graphs(
    wrap: Callable[[nn.Module], nn.Module], why: str, R: int
) -> None:
    def wrapped() -> Federation:
        fed = federation(rounds=12, method=celu.Method(W=3, R=R))
        hosts = {n: dataclasses.replace(h, bottom=wrap(h.bottom)) for n, h in fed.hosts.items()}
        return Federation(fed.job, fed.guest, hosts)

    random.seed(5)
    weights, warnings = trained(wrapped())
    assert any(text.startswith("Z is not captured") and why in text for text in warnings)
    random.seed(5)
    assert_same_bits(weights, trained(wrapped(), graphs=False)[0])


def test_an_update_that_cannot_be_captured_has_the_dropout_of_the_z_that_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As on a GPU, whose random numbers a graph draws again.
    monkeypatch.setattr(step_snapshot.Snapshot, "require_repeatable", lambda self: None)
    record = Graphs._record

    def fails(self: Graphs, step: Any, inputs: Any) -> Any:
        if getattr(step, "func", step).__name__ == "_apply":
            raise RuntimeError("not this one")
        return record(self, step, inputs)

    monkeypatch.setattr(Graphs, "_record", fails)

    def wrapped() -> Federation:
        fed = federation(rounds=12, method=celu.Method(R=1))
        hosts = {n: dataclasses.replace(h, bottom=Dropping(h.bottom)) for n, h in fed.hosts.items()}
        return Federation(fed.job, fed.guest, hosts)

    weights, warnings = trained(wrapped())
    assert warnings == [
        "the update is not captured as a CUDA graph, and takes longer: not this one"
    ]
    assert_same_bits(weights, trained(wrapped(), graphs=False)[0])


def test_a_step_whose_inputs_change_shape_is_given_up_with_what_follows_it() -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = Optimizer([model], celu.Optimizer(name="sgd", lr=0.1), "guest", 10)
    messages: list[str] = []
    graphs = Graphs([model], optimizer, GraphOptions(True, messages.append))

    def exchange(x_BD: Tensor) -> list[Tensor]:
        loss = model(x_BD).square().mean()
        loss.backward()
        return [loss.detach()]

    def update() -> list[Tensor]:
        optimizer.step()
        return []

    batches = [torch.randn(4, 3) for _ in range(8)] + [torch.randn(2, 3), torch.randn(4, 3)]
    for x_BD in batches:
        before = model.weight.detach().clone()
        reference = before.clone().requires_grad_()
        (x_BD @ reference.T).square().mean().backward()
        assert reference.grad is not None
        graphs.run("the exchange", exchange, x_BD)
        graphs.run("the update", update, after="the exchange")
        torch.testing.assert_close(model.weight.detach(), before - 0.1 * reference.grad)
    assert [text.partition(":")[2] for text in messages] == [
        " its inputs have other shapes than before",
        " the exchange is not",
    ]
