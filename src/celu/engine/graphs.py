"""CUDA graphs: steps of a trainer that are captured once, and then replayed with new inputs.

Launching a step's kernels takes the CPU longer than executing them takes a GPU; a graph launches
all of them at once. This is the only module that knows of graphs: a trainer passes its steps,
functions of tensors that change weights and optimizer state in place, to `Graphs.run`.

A step is captured at its third call, if it can be: its shapes are fixed, and nothing in it reads a
value back from the device. At this call and the next two it is executed both ways from the same
state, and the results are compared: a graph repeats what Python did when it was captured. If it
cannot be captured, or the results differ, the step stays as it is and `report` says why.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from celu.engine.optimizer import Optimizer
from celu.engine.step_snapshot import Snapshot, agree
from celu.errors import CeluError

Step = Callable[..., list[Tensor]]
_Signature = tuple[tuple[torch.Size, torch.dtype, torch.device], ...]
_WARM_UP = 2  # calls before the capture: lazy initialisation, and the optimizer's first state
_SMALL_BYTES = 1 << 18
_BATCHES = 3  # on which a captured step must agree with the step as it is
_NO_MEMORY = "there is not enough memory to compare its results"


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
    after: str  # the step whose gradients or autograd graph it uses
    inputs: list[Tensor]
    outputs: list[Tensor]
    detached: list[Tensor]  # the same memory, without an autograd graph
    gradients: list[Tensor | None]  # of the parameters, after the step
    agreed: int = 0  # batches, up to `_BATCHES`

    def replay(self, inputs: Sequence[Tensor]) -> None:
        _copy(self.inputs, inputs)
        self.graph.replay()


class Graphs:
    """The steps of one trainer, captured where that is possible."""

    def __init__(
        self, modules: Iterable[nn.Module], optimizer: Optimizer, options: GraphOptions
    ) -> None:
        self._modules = list(modules)
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
        captured, as_it_is = self._captured.get(name), step
        if captured is not None and captured.signature == _signature(inputs):
            self._just_captured = ""
            if captured.agreed < _BATCHES:
                return self._check(name, step, inputs, after, instead)
            captured.replay(inputs)
            return self._results(captured)
        if captured is not None:  # what follows it would use what its latest replay left
            self._give_up(name, "its inputs have other shapes than before")
            as_it_is = instead or step
        elif name not in self._given_up:
            calls = self._calls[name] = self._calls.get(name, 0) + 1
            is_next = after in self._captured if instead is None else after == self._just_captured
            if calls > _WARM_UP and (not after or is_next):
                return self._check(name, step, inputs, after, instead)
            if instead is not None and after in self._captured:
                as_it_is = instead
        return self._execute(as_it_is, inputs)

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
        current = torch.cuda.current_stream(self._stream.device)
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

    def _check(
        self, name: str, step: Step, inputs: Sequence[Tensor], after: str, instead: Step | None
    ) -> list[Tensor]:
        """Execute a step both ways, after capturing it if it is not; give it up if they differ."""
        as_it_is = instead or step
        try:
            before = self._snapshot()
        except torch.OutOfMemoryError:
            self._give_up(name, _NO_MEMORY)
            return self._execute(as_it_is, inputs)
        captured = self._captured.get(name)
        if captured is None:
            try:
                captured = self._record(step, inputs)
                captured.after = after
                before.require_repeatable()
            except (RuntimeError, CeluError) as error:  # also CUDA's, and of a user's module
                before.restore()
                why = (str(error).strip() or type(error).__name__).splitlines()[0]
                return self._fail(name, self._execute(as_it_is, inputs), why, instead)
            before.restore()  # nothing was executed, but gradients were replaced
            self._captured[name] = captured
        results, why = self._compare(captured, as_it_is, inputs, before)
        if why:
            self._give_up(name, why)
            return results
        if not captured.agreed:
            self._just_captured = name
        captured.agreed += 1
        return results

    def _fail(
        self, name: str, outputs: list[Tensor], why: str, instead: Step | None
    ) -> list[Tensor]:
        """The outputs of a step that was not captured."""
        if instead is None and name not in self._failed_once:
            self._failed_once.add(name)  # another thread may be the reason: try once more
        else:
            self._give_up(name, why)
        return outputs

    def _compare(
        self, captured: _Captured, step: Step, inputs: Sequence[Tensor], before: Snapshot
    ) -> tuple[list[Tensor], str]:
        """Execute a step both ways from the same state; returns its outputs, and what differs.

        If something does, all is as the step itself left it; otherwise as the graph did.
        """
        outputs, after = self._execute(step, inputs), None
        try:
            expected = [output.detach().clone() for output in outputs]
            after = self._snapshot()
            before.restore()
            captured.replay(inputs)
            results = self._results(captured)
            if agree(results, expected) and after.agrees():
                return results, ""
            why = "its results differ"
        except torch.OutOfMemoryError:
            why = _NO_MEMORY
        if after is not None:
            after.restore()
        return outputs, why

    def _give_up(self, name: str, why: str) -> None:
        """Leave a step, and those that follow its replays, as they are from now on."""
        self._given_up.add(name)
        self._captured.pop(name, None)
        self._report(f"{name} is not captured as a CUDA graph, and takes longer: {why}")
        for follower in [n for n, captured in self._captured.items() if captured.after == name]:
            self._give_up(follower, f"{name} is not")

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
        return _Captured(graph, _signature(inputs), "", own, outputs, detached, gradients)

    def _snapshot(self) -> Snapshot:
        return Snapshot.of(self._modules, self._optimizer)


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


def _signature(inputs: Sequence[Tensor]) -> _Signature:
    return tuple([(tensor.shape, tensor.dtype, tensor.device) for tensor in inputs])
