"""A batch in slices, one after the other or one a rank, and what becomes of them.

A party of N ranks divides every batch into N slices of consecutive rows. One process that is told
to use N slices computes them one after the other, with the same bits: `Slices` is that process,
and the interface of a group of ranks (`group`). With one slice nothing is divided, and every method
does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from celu.data.dataset import Batch
from celu.ranks.gradients import Gradients, sum_in_order, take_gradients

_T = TypeVar("_T")


class Slices:
    """The slices of a party that is one process.

    `size` is their number, `own` those that this process computes, `is_first` whether it is the one
    that has the links to the peers and the run folder. `launch` names what torchrun launched, the
    same however often it restarts the ranks; None without torchrun.
    """

    launch: str | None = None

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.own = range(size)

    def __deepcopy__(self, memo: dict[int, Any]) -> Slices:
        return self  # a process is in one group, whatever copies of a model there are

    @property
    def is_first(self) -> bool:
        """Whether this process has the links and the run folder."""
        return self.own.start == 0

    def bounds(self, rows: int) -> list[int]:
        """Where the slices of a batch start, and its end; the first is never smaller."""
        return [-(-rows * k // self.size) for k in range(self.size + 1)]

    def own_rows(self, rows: int) -> slice:
        """The rows of a batch that this process computes."""
        bounds = self.bounds(rows)
        return slice(bounds[self.own.start], bounds[self.own.stop])

    def each(self, rows: int, seed: Callable[[int], None] | None = None) -> Iterator[slice]:
        """The slices of this process, as positions among its own rows; empty ones are left out.

        `seed` is called with the number of each slice but the first, which is seeded already.
        """
        bounds = self.bounds(rows)
        zero = bounds[self.own.start]
        for number in self.own:
            if number > self.own.start and seed is not None:
                seed(number)
            if bounds[number + 1] > bounds[number]:
                yield slice(bounds[number] - zero, bounds[number + 1] - zero)

    def part(self, tensor: Tensor, rows: slice) -> Tensor:
        """Some of a tensor's rows: a copy, so that memory is aligned as in a process of its own."""
        return tensor if len(self.own) == 1 else tensor[rows].clone()

    def own_part(self, batch: Batch, rows: int) -> Batch:
        """Those rows of a whole batch that this process computes."""
        return batch if len(self.own) == self.size else batch.part(self.own_rows(rows))

    def stand_in(self, batch: Batch, rows: int) -> Batch | None:
        """For a process without any rows of a whole batch: one row of another's.

        It is for a forward pass in which other ranks may ask this one for rows of tables.
        """
        own = self.own_rows(rows)
        return batch.part(slice(0, 1)) if own.start == own.stop else None

    def part_of(self, batch: Batch, rows: slice) -> Batch:
        """Some rows of this process's part of a batch; see `part`."""
        return batch if len(self.own) == 1 else batch.part(rows)

    def join(self, found: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """What each slice of this process computed, tensor by tensor, concatenated."""
        if len(found) < 2:
            return [tensor for tensors in found for tensor in tensors]
        return [torch.cat(tensors) for tensors in zip(*found, strict=True)]

    def mean(self, values_B: Tensor, rows: int) -> Tensor:
        """A slice's part of the mean over all rows of a batch."""
        return values_B.mean() if len(values_B) == rows else values_B.sum() / rows

    def total(self, part: Tensor) -> Tensor:
        """The sum of what the processes have, added in their order, at all of them."""
        return part

    def any(self, found: bool) -> bool:
        """Whether it holds at any of the processes, at all of them."""
        return bool(self.total(torch.tensor(float(found))) > 0)

    def at_first(self, compute: Callable[[], _T], otherwise: _T) -> _T:
        """What the first process computes; others get `otherwise`, and all the same CeluError."""
        found = [otherwise]

        def run() -> None:
            found[0] = compute()

        self.share(run)
        return found[0]

    def share(self, compute: Callable[[], Any]) -> Any:
        """What the first process computes, as JSON values, or the CeluError that it raises."""
        return compute()

    def gather(self, tensor: Tensor, rows: int) -> Tensor:
        """All rows of a batch from those of each process, at the first; at others nothing useful.

        A process without rows passes a tensor of any shape.
        """
        return tensor

    def scatter(
        self, compute: Callable[[], Sequence[Tensor]], rows: int, widths: Sequence[int]
    ) -> list[Tensor]:
        """This process's rows of what the first one computes: float32 of this number of rows each.

        All raise the CeluError that the first one raises.
        """
        return list(compute())

    def broadcast(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """The tensors of the first process, in main memory, at all."""
        assert tensors is not None
        return tensors

    def gradients(self, parameters: Sequence[nn.Parameter]) -> GradientSum:
        """Collects the gradients of the slices of one step."""
        return GradientSum(self, parameters)

    def sum_gradients(
        self, parts: list[Gradients], parameters: Sequence[nn.Parameter]
    ) -> Gradients:
        """The sum of the gradients of all slices, added in the order of the slices."""
        return sum_in_order(parts)


class GradientSum:
    """The gradients of one step: `add` after each slice's backward pass, then `finish`."""

    def __init__(self, slices: Slices, parameters: Sequence[nn.Parameter]) -> None:
        self._slices = slices
        self._parameters = parameters
        self._parts: list[Gradients] = []

    def clear(self) -> None:
        """Forget the slices of a step that was not finished."""
        self._parts = []

    def add(self) -> None:
        """Take the gradients of a slice."""
        if self._slices.size > 1:
            self._parts.append(take_gradients(self._parameters))

    @torch.no_grad()
    def finish(self) -> None:
        """Give the parameters the sum over all slices."""
        if self._slices.size == 1 or not self._parameters:
            return
        total = self._slices.sum_gradients(self._parts, self._parameters)
        for parameter, gradient in zip(self._parameters, total, strict=True):
            parameter.grad = gradient
        self._parts = []


ONE = Slices()
