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
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from celu.engine.optimizer import Optimizer
from celu.errors import CeluError, ModelError

Step = Callable[..., list[Tensor]]
_Signature = tuple[tuple[torch.Size, torch.dtype, torch.device], ...]
_WARM_UP = 2  # calls before the capture: lazy initialisation, and the optimizer's first state
_SMALL_BYTES = 1 << 18
_RTOL, _ATOL = 1e-3, 1e-5  # kernels that add in another order round differently
_BATCHES = 3  # on which a captured step must agree with the step as it is
_NO_MEMORY = "there is not enough memory to compare its results"
_COMPARED = 1 << 26  # elements at a time: comparing takes some times their memory


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
        self, captured: _Captured, step: Step, inputs: Sequence[Tensor], before: _Snapshot
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
            if _agree(results, expected) and after.agrees():
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

    def _snapshot(self) -> _Snapshot:
        return _Snapshot.of(self._modules, self._optimizer)


class _Place(NamedTuple):
    """A parameter or a buffer of a module, and the memory that it has."""

    owner: nn.Module
    name: str
    tensor: Tensor | None
    memory: Tensor | None

    @staticmethod
    def all_of(modules: Iterable[nn.Module]) -> list[_Place]:
        return [
            # Writing to `detach()` instead would invalidate the autograd graph of a captured step.
            _Place(owner, name, tensor, None if tensor is None else tensor.data)
            for module in modules
            for owner in module.modules()
            for name, tensor in (*owner._parameters.items(), *owner._buffers.items())
        ]

    @property
    def key(self) -> tuple[int, str, int, int]:
        pointer = 0 if self.memory is None else self.memory.data_ptr()
        return id(self.owner), self.name, id(self.tensor), pointer

    def restore(self) -> None:
        if self.tensor is not None and self.memory is not None:
            self.tensor.data = self.memory
        setattr(self.owner, self.name, self.tensor)


@dataclass(frozen=True)
class _Snapshot:
    """What a step may change, with copies: tensors, gradients and the state of random numbers."""

    modules: list[nn.Module]
    places: list[_Place]
    tensors: list[tuple[Tensor, Tensor]]
    gradients: list[tuple[nn.Parameter, Tensor | None, Tensor | None]]
    generators: list[tuple[torch.Generator, Tensor]]  # the CPU's first
    of_python: Any

    @staticmethod
    def of(modules: list[nn.Module], optimizer: Optimizer) -> _Snapshot:
        places = _Place.all_of(modules)
        once = {id(place.tensor): place.memory for place in places if place.memory is not None}
        tensors = [*once.values(), *(tensor.data for tensor in optimizer.tensors())]
        gradients = [(parameter, parameter.grad) for parameter in optimizer.parameters]
        generators, device = [torch.default_generator], optimizer.parameters[0].device
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index or 0])
        return _Snapshot(
            modules,
            places,
            [(tensor, tensor.clone()) for tensor in tensors],
            [(p, g, None if g is None else g.clone()) for p, g in gradients],
            [(generator, generator.get_state()) for generator in generators],
            random.getstate(),
        )

    def restore(self) -> None:
        """Write the copies back. Gradients are the same tensors again, with their old values."""
        self._restore_places()
        for tensor, value in self.tensors:
            tensor.copy_(value)
        for parameter, gradient, copy in self.gradients:
            if gradient is not None and copy is not None:
                _values(gradient).copy_(_values(copy))
            parameter.grad = gradient
        for generator, state in self.generators:
            generator.set_state(state)
        random.setstate(self.of_python)

    def _restore_places(self) -> None:
        now = {place[:2]: place.key for place in _Place.all_of(self.modules)}
        for place in self.places:
            if now.pop(place[:2], None) != place.key:
                place.restore()
        for owner, name in now:
            delattr(owner, name)

    def has_same_places(self) -> bool:
        """Whether parameters and buffers are the same tensors, in the same memory."""
        now = _Place.all_of(self.modules)
        return [place.key for place in now] == [place.key for place in self.places]

    def require_repeatable(self) -> None:
        """Raise ModelError if a step that was captured since did what a graph does not repeat."""
        if not self.has_same_places():
            raise ModelError("it replaces a parameter or a buffer by another tensor")
        generator, state = self.generators[0]
        if not generator.get_state().equal(state) or random.getstate() != self.of_python:
            raise ModelError("it draws random numbers on the CPU")

    def agrees(self) -> bool:
        """Whether tensors and gradients are those of the snapshot now, within rounding."""
        mine = [copy for _, _, copy in self.gradients]
        now = [parameter.grad for parameter, _, _ in self.gradients]
        if not self.has_same_places() or [g is None for g in now] != [g is None for g in mine]:
            return False
        return _agree(
            [*(tensor for tensor, _ in self.tensors), *(_values(g) for g in now if g is not None)],
            [*(copy for _, copy in self.tensors), *(_values(g) for g in mine if g is not None)],
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
        x.shape == y.shape
        and all(
            torch.allclose(u, v, _RTOL, _ATOL, equal_nan=True)
            for u, v in zip(_parts(x), _parts(y), strict=True)
        )
        for x, y in zip(a, b, strict=True)
    )


def _parts(tensor: Tensor) -> Sequence[Tensor]:
    parts: Sequence[Tensor] = tensor.reshape(-1).split(_COMPARED)
    return parts


def _values(gradient: Tensor) -> Tensor:
    return gradient._values() if gradient.is_sparse else gradient


def _signature(inputs: Sequence[Tensor]) -> _Signature:
    return tuple([(tensor.shape, tensor.dtype, tensor.device) for tensor in inputs])
