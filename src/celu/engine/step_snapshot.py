"""What a step of a trainer may change, as a value: to execute it twice from one state.

Parameters and buffers, optimizer state, gradients and the state of random numbers. `graphs`
compares a captured step with the step itself by it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from celu.engine.optimizer import Optimizer
from celu.errors import ModelError

_RTOL, _ATOL = 1e-3, 1e-5  # kernels that add in another order round differently
_COMPARED = 1 << 26  # elements at a time: comparing takes some times their memory


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
class Snapshot:
    """What a step may change, with copies: tensors, gradients and the state of random numbers."""

    modules: list[nn.Module]
    places: list[_Place]
    tensors: list[tuple[Tensor, Tensor]]
    gradients: list[tuple[nn.Parameter, Tensor | None, Tensor | None]]
    generators: list[tuple[torch.Generator, Tensor]]  # the CPU's first
    of_python: Any

    @staticmethod
    def of(modules: list[nn.Module], optimizer: Optimizer) -> Snapshot:
        """Copy what a step of these modules may change now."""
        places = _Place.all_of(modules)
        once = {id(place.tensor): place.memory for place in places if place.memory is not None}
        tensors = [*once.values(), *(tensor.data for tensor in optimizer.tensors())]
        gradients = [(parameter, parameter.grad) for parameter in optimizer.parameters]
        generators, device = [torch.default_generator], optimizer.parameters[0].device
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index or 0])
        return Snapshot(
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
        return agree(
            [*(tensor for tensor, _ in self.tensors), *(_values(g) for g in now if g is not None)],
            [*(copy for _, copy in self.tensors), *(_values(g) for g in mine if g is not None)],
        )


def agree(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether tensors have the same shapes and, within rounding, the same values."""
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
