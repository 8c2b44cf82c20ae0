"""CUDA graphs: steps of a trainer that are captured once, and then replayed with new inputs.

Launching a step's kernels takes the CPU longer than executing them takes a GPU; a graph launches
all of them at once. This is the only module that knows of graphs: a trainer passes its steps,
functions of tensors that change weights and optimizer state in place, to `Graphs.run`.

A step is captured at its third call, if it can be: its shapes are fixed, and nothing in it reads a
value back from the device. It is executed both ways from the same state, and the results are
compared. If it cannot be captured, or the results differ, the step stays as it is and
`report` says why.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from celu.engine.optimizer import Optimizer
from celu.errors import CeluError

Step = Callable[..., list[Tensor]]
_Signature = tuple[tuple[torch.Size, torch.dtype, torch.device], ...]
_WARM_UP = 2  # calls before the capture: lazy initialisation, and the optimizer's first state
_SMALL_BYTES = 1 << 18
_RTOL, _ATOL = 1e-3, 1e-5  # kernels that add in another order round differently


class GraphOptions(NamedTuple):
    """Whether to capture steps on a GPU, and where to say that one cannot be."""

    enabled: bool
    report: Callable[[str], None]


NO_GRAPHS = GraphOptions(False, lambda message: None)


@dataclass
class _Captured:
    """A captured step."""

    graph: torch.cuda.CUDAGraph
    signature: _Signature
    inputs: list[Tensor]
    outputs: list[Tensor]
    detached: list[Tensor]  # the same memory, without an autograd graph
    gradients: list[Tensor | None]  # of the parameters, after the step

    def replay(self, inputs: Sequence[Tensor]) -> None:
        _copy(self.inputs, inputs)
        self.graph.replay()


class Graphs:
    """The steps of one trainer, captured where that is possible."""

    def __init__(
        self, modules: Iterable[nn.Module], optimizer: Optimizer, options: GraphOptions
    ) -> None:
        self._buffers = [buffer for module in modules for buffer in module.buffers()]
        self._optimizer = optimizer
        self._parameters = optimizer.parameters
        on_gpu = bool(self._parameters) and all(p.is_cuda for p in self._parameters)
        self._enabled = options.enabled and on_gpu and optimizer.is_in_place
        self._report = options.report
        if options.enabled and on_gpu and not optimizer.is_in_place:
            self._report(
                "no step is captured as a CUDA graph, and all take longer: a graph would repeat "
                "the learning rate of its capture, since updates on a GPU need Triton and float32 "
                "parameters"
            )
        if self._enabled:
            self._stream = torch.cuda.Stream(self._parameters[0].device)
        self._captured: dict[str, _Captured] = {}
        self._just_captured = ""  # the step of the latest call, if that captured it
        self._calls: dict[str, int] = {}
        self._failed_once: set[str] = set()
        self._given_up: set[str] = set()

    def run(
        self,
        name: str,
        step: Step,
        *inputs: Tensor,
        after: str = "",
        instead: Step | None = None,
    ) -> list[Tensor]:
        """The outputs of a step. Those of a captured one own their memory, and have no gradient;
        others have that of the step.

        `after` names the step whose gradients this one uses where they are: it is captured only if
        that one is. With `instead`, it also uses that step's autograd graph, which exists once, at
        the call that captures; later, `instead` has the same effect without it.
        """
        if not self._enabled:
            return step(*inputs)
        if name in self._given_up:
            return self._execute(step, inputs)
        captured = self._captured.get(name)
        if captured is not None and captured.signature == _signature(inputs):
            self._just_captured = ""
            captured.replay(inputs)
            return self._results(captured)
        calls = self._calls[name] = self._calls.get(name, 0) + 1
        can_follow = after in self._captured if instead is None else after == self._just_captured
        if captured is None and calls > _WARM_UP and (not after or can_follow):
            return self._capture(name, step, inputs, instead)
        uses_old_graph = instead is not None and after in self._captured
        return self._execute(instead if uses_old_graph and instead else step, inputs)

    def has(self, name: str) -> bool:
        """Whether this step is captured."""
        return name in self._captured

    def live(self, name: str, follower: str) -> Tensor | None:
        """The output of a captured step where a replay writes it, with its autograd graph.

        None if the step that follows it is not captured and cannot be now.
        """
        can_follow = self._just_captured == name and self._calls.get(follower, 0) >= _WARM_UP
        is_captured = follower in self._captured
        if is_captured or (can_follow and follower not in self._given_up):
            return self._captured[name].outputs[0]
        return None

    def _execute(self, step: Step, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Execute a step on the stream of the captures, to which autograd binds parameters."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = step(*inputs)
        current.wait_stream(self._stream)
        return outputs

    def _results(self, captured: _Captured) -> list[Tensor]:
        for parameter, gradient in zip(self._parameters, captured.gradients, strict=True):
            parameter.grad = gradient
        results = [torch.empty_like(output, requires_grad=False) for output in captured.outputs]
        _copy(results, captured.detached)
        return results

    def _capture(
        self, name: str, step: Step, inputs: Sequence[Tensor], instead: Step | None
    ) -> list[Tensor]:
        before, why = self._snapshot(), ""
        try:
            captured = self._record(step, inputs)
        except (RuntimeError, CeluError) as error:  # also what CUDA reports, and a user's module
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
        before.restore(self._parameters)  # nothing was executed, but gradients were replaced
        outputs = self._execute(instead or step, inputs)
        if not why:
            expected = [output.detach().clone() for output in outputs]
            after = self._snapshot()
            before.restore(self._parameters)
            captured.replay(inputs)
            results = self._results(captured)
            if _agree(results, expected) and self._snapshot().agrees_with(after):
                self._captured[name], self._just_captured = captured, name
                return results
            after.restore(self._parameters)
            why = "its results differ"
        elif instead is None and name not in self._failed_once:
            self._failed_once.add(name)  # another thread may be the reason: try once more
            return outputs
        self._given_up.add(name)
        self._report(f"{name} is not captured as a CUDA graph, and takes longer: {why}")
        return outputs

    def _record(self, step: Step, inputs: Sequence[Tensor]) -> _Captured:
        own = [tensor.detach().clone() for tensor in inputs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), _no_garbage_collection():
            # Other threads, such as the one that gathers rows, may use the device meanwhile.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                outputs = step(*own)
            except BaseException:
                with suppress(RuntimeError):  # the capture is invalid already
                    graph.capture_end()
                raise
            graph.capture_end()
        gradients = [parameter.grad for parameter in self._parameters]
        detached = [output.detach() for output in outputs]
        return _Captured(graph, _signature(inputs), own, outputs, detached, gradients)

    def _snapshot(self) -> _Snapshot:
        tensors = [*self._buffers, *self._optimizer.tensors()]
        return _Snapshot.of(self._parameters, tensors)


@dataclass(frozen=True)
class _Snapshot:
    """What a step may change: tensors with copies of them, gradients and the random state."""

    tensors: list[tuple[Tensor, Tensor]]
    gradients: list[tuple[Tensor | None, Tensor | None]]
    generator: Any
    random_state: Tensor

    @staticmethod
    def of(parameters: Sequence[nn.Parameter], others: Sequence[Tensor]) -> _Snapshot:
        # Not `detach()`: writing to it would invalidate the autograd graph of a captured step.
        tensors = [*(p.data for p in parameters), *others]
        gradients = [p.grad for p in parameters]
        generator = torch.cuda.default_generators[parameters[0].device.index or 0]
        return _Snapshot(
            [(tensor, tensor.clone()) for tensor in tensors],
            [(g, None if g is None else g.clone()) for g in gradients],
            generator,
            generator.get_state(),
        )

    def restore(self, parameters: Sequence[nn.Parameter]) -> None:
        """Write the copies back. Gradients are the same tensors again, with their old values."""
        for tensor, value in self.tensors:
            tensor.copy_(value)
        for parameter, (gradient, copy) in zip(parameters, self.gradients, strict=True):
            if gradient is not None and copy is not None:
                _values(gradient).copy_(_values(copy))
            parameter.grad = gradient
        self.generator.set_state(self.random_state)

    def agrees_with(self, other: _Snapshot) -> bool:
        """Whether both have the same tensors and gradients, within rounding."""
        mine, theirs = ([g for _, g in s.gradients] for s in (self, other))
        if [g is None for g in mine] != [g is None for g in theirs]:
            return False
        tensors, others = ([copy for _, copy in s.tensors] for s in (self, other))
        return _agree(
            [*tensors, *(_values(g) for g in mine if g is not None)],
            [*others, *(_values(g) for g in theirs if g is not None)],
        )


def _copy(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors: large ones each at the device's speed, small ones with one kernel for all."""
    small: list[tuple[Tensor, Tensor]] = []
    for target, value in zip(into, values, strict=True):
        if value.nbytes < _SMALL_BYTES:
            small.append((target, value))
        else:
            target.copy_(value)
    if small:
        targets, sources = zip(*small, strict=True)
        torch._foreach_copy_(targets, sources)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Freeing a tensor or a graph of another step would end a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _agree(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.allclose(x, y, _RTOL, _ATOL, equal_nan=True)
        for x, y in zip(a, b, strict=True)
    )


def _values(gradient: Tensor) -> Tensor:
    return gradient._values() if gradient.is_sparse else gradient


def _signature(inputs: Sequence[Tensor]) -> _Signature:
    return tuple([(tensor.shape, tensor.dtype, tensor.device) for tensor in inputs])
