"""CUDA graphs on a CPU, for tests: a replay executes the captured step once more, in its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from torch import Tensor

import celu.engine.graphs as graphs_of
from celu.engine.graphs import Graphs


class EmulatedGraph:
    """A step that was captured, with the memory of its inputs, outputs and gradients.

    Unlike a CUDA graph it executes what is Python, too: `is_replaying` tells a test's module when
    to do what a graph would.
    """

    is_replaying = False

    def __init__(self, graphs: Graphs, step: Any, own: Sequence[Tensor]) -> None:
        self.step, self._own = step, own
        self._parameters, self._modules = graphs._parameters, graphs._modules
        self._needed = [p.grad for p in self._parameters]  # such as those of the step before
        self.outputs: list[Tensor] = step(*own)
        self.gradients = [p.grad for p in self._parameters]
        self._z: EmulatedGraph | None = None  # whose autograd graph the step uses
        for captured in graphs._captured.values():
            before = captured.graph
            assert isinstance(before, EmulatedGraph)
            if isinstance(step, partial) and _has(step, before.outputs):
                self._z = before

    def replay(self) -> None:
        """Execute the step, as a CUDA graph would."""
        for parameter, gradient in zip(self._parameters, self._needed, strict=True):
            parameter.grad = gradient
        EmulatedGraph.is_replaying = True
        try:
            if self._z is None:
                found = self.step(*self._own)
            else:
                found = self.step.func(self._recompute(self._z), *self._own)
        finally:
            EmulatedGraph.is_replaying = False
        for output, value in zip(self.outputs, found, strict=True):
            output.data.copy_(value.detach())
        for parameter, static in zip(self._parameters, self.gradients, strict=True):
            assert (parameter.grad is None) == (static is None)
            if static is not None and parameter.grad is not None and static is not parameter.grad:
                static.copy_(parameter.grad)

    def _recompute(self, z: EmulatedGraph) -> list[Tensor]:
        """Z with an autograd graph of its own; a CUDA graph has that of its capture."""
        buffers = [b for module in self._modules for b in module.buffers()]
        values = [buffer.clone() for buffer in buffers]
        found: list[Tensor] = z.step(*z._own)
        for buffer, value in zip(buffers, values, strict=True):
            buffer.data.copy_(value)
        return found


def _has(step: partial[Any], outputs: list[Tensor]) -> bool:
    given = [x for argument in step.args if isinstance(argument, list) for x in argument]
    return any(a is b for a in given for b in outputs)


def emulate_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parties on a CPU capture their steps."""
    init = Graphs.__init__

    def enabled(self: Graphs, *arguments: Any) -> None:
        init(self, *arguments)
        self._enabled = arguments[2].enabled and bool(self._parameters)

    def record(self: Graphs, step: Any, inputs: Sequence[Tensor]) -> Any:
        own = [tensor.detach().clone() for tensor in inputs]
        graph: Any = EmulatedGraph(self, step, own)
        outputs = graph.outputs
        detached = [output.detach() for output in outputs]
        signature = graphs_of._signature(inputs)
        return graphs_of._Captured(graph, signature, "", own, outputs, detached, graph.gradients)

    monkeypatch.setattr(Graphs, "__init__", enabled)
    monkeypatch.setattr(Graphs, "_record", record)
    monkeypatch.setattr(Graphs, "_execute", lambda self, step, inputs: step(*inputs))


@contextmanager
def noting_captures() -> Iterator[list[list[str]]]:
    """Afterwards, the captured steps of each party, and of a twin: a list of sorted lists."""
    found: list[Graphs] = []
    captured: list[list[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        init = Graphs.__init__

        def noted(self: Graphs, *arguments: Any) -> None:
            init(self, *arguments)
            found.append(self)

        patch.setattr(Graphs, "__init__", noted)
        yield captured
    captured += sorted(sorted(graphs._captured) for graphs in found)
