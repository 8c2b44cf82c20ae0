"""Steps are captured only if their updates work in place. No device is needed."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import celu
from celu.engine import update_rules
from celu.engine.graphs import GraphOptions, Graphs
from celu.engine.optimizer import Optimizer

RULES = ("Adagrad", "Sgd", "Adam", "SparseAdam")


class OnDevice(nn.Parameter):
    """A parameter that says that it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("name", ["adagrad", "sgd", "adam"])
@pytest.mark.parametrize("enabled", [True, False])
def test_graphs_are_off_and_say_why_if_a_rate_is_a_number_of_python(
    name: Any, enabled: bool
) -> None:
    model = nn.Module()
    # Not float32, for which there are no kernels, wherever this test runs.
    model.weight = OnDevice(torch.ones(3, dtype=torch.float64))
    optimizer = Optimizer([model], celu.Optimizer(name=name, lr=0.1), "guest", 10)
    messages: list[str] = []
    graphs = Graphs([model], optimizer, GraphOptions(enabled, messages.append))
    calls: list[int] = []

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        calls.append(1)
        return [x]

    for _ in range(6):  # on a GPU that is not there, a capture would be an error
        graphs.run("a step", step, torch.ones(2))
    assert len(calls) == 6
    assert len(messages) == enabled
    assert all("need Triton and float32 parameters" in text for text in messages)


def test_the_rules_for_a_gpu_work_in_place_and_the_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = _gpu_rules(monkeypatch)
    for name in RULES:
        assert getattr(rules, name).is_in_place
        assert not getattr(update_rules, name).is_in_place


def test_a_rule_for_a_gpu_retains_the_tensors_of_its_rate_and_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = _gpu_rules(monkeypatch)
    weight = nn.Parameter(torch.ones(3))
    for rule in (rules.Adagrad([weight], 0.1, 0.0), rules.Sgd([weight], 0.1, 0.9)):
        if rule.name == "SGD":  # its step needs no kernel
            weight.grad = torch.ones(3)
            rule.step()
        rate, state = rule.lr, _tensors(rule)
        rule.lr = 0.05
        rule.load_state({0: {key: torch.full((3,), 2.0) for key in rule.state_keys}})
        assert rule.lr is rate and float(rate) == pytest.approx(0.05)
        assert all(a is b for a, b in zip(_tensors(rule), state, strict=True))
        assert all(t.equal(torch.full((3,), 2.0)) for t in state)


def _tensors(rule: Any) -> list[torch.Tensor]:
    return [tensor for values in rule.state().values() for tensor in values.values()]


def _gpu_rules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with them, also where Triton is missing: nothing here calls a kernel."""
    names = ("celu.engine.gpu_kernels", "celu.engine.gpu_update_rules")
    if find_spec("triton") is None:
        triton, language = ModuleType("triton"), ModuleType("triton.language")
        triton.__dict__.update(jit=lambda kernel: kernel, language=language)
        language.__dict__["constexpr"] = int
        monkeypatch.setitem(sys.modules, "triton", triton)
        monkeypatch.setitem(sys.modules, "triton.language", language)
        for name in names:  # imported again, and forgotten after the test
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
            del sys.modules[name]
    return import_module(names[1])
