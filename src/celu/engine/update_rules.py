"""How gradients become updates: AdaGrad and SGD with fewer operations than torch's, and Adam.

On a CPU an update's bits are those of `torch.optim`. An embedding's sparse gradient takes less
time, the more the wider it is; and an accelerator, which waits to be told what to do rather than
for it to be done, is told less. Nor does a run wait at its start for what torch brings along with
its own optimizers: a compiler, which takes a second or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

# Say so explicitly: torch warns once where this is left open.
torch.sparse.check_sparse_tensor_invariants.disable()

Memory = dict[int, dict[str, Any]]  # by parameter, counted from 0: what is remembered of it


class Rule(Protocol):
    """An optimizer of some parameters."""

    name: str
    parameters: Sequence[nn.Parameter]
    remembers: set[str]  # of a parameter: numbers, scalars, or tensors of its shape
    of_all: bool  # whether of every parameter from the start, or of those updated so far

    def update(self) -> None:
        """Apply the gradients."""
        ...

    def memory(self) -> Memory:
        """What is remembered, as it is: the next update writes to it."""
        ...

    def remember(self, memory: Memory) -> None:
        """Go on from this, which is from now on written to."""
        ...


class Adagrad:
    """AdaGrad; its rate does not decay."""

    name = "Adagrad"
    remembers = {"sum"}
    of_all = True
    _EPS = 1e-10

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, accumulator: float) -> None:
        self.parameters = parameters
        self._lr = lr
        self._sums = [torch.full_like(p, accumulator, requires_grad=False) for p in parameters]

    @torch.no_grad()
    def update(self) -> None:
        """See `Rule`."""
        weights: list[Tensor] = []
        sums: list[Tensor] = []
        gradients: list[Tensor] = []
        for weight, total in zip(self.parameters, self._sums, strict=True):
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                self._apply_sparse(weight, total, weight.grad)
            else:
                weights.append(weight)
                sums.append(total)
                gradients.append(weight.grad)
        if weights:
            torch._foreach_addcmul_(sums, gradients, gradients, value=1.0)
            roots = torch._foreach_sqrt(sums)
            torch._foreach_add_(roots, self._EPS)
            torch._foreach_addcdiv_(weights, gradients, roots, value=-self._lr)

    def memory(self) -> Memory:
        """See `Rule`."""
        return {index: {"sum": total} for index, total in enumerate(self._sums)}

    def remember(self, memory: Memory) -> None:
        """See `Rule`."""
        self._sums = [memory[index]["sum"] for index in range(len(self.parameters))]

    def _apply_sparse(self, weight: Tensor, total: Tensor, gradient: Tensor) -> None:
        rows, values = _summed(gradient)
        sums = total.index_select(0, rows).add_(values.pow(2))
        total.index_copy_(0, rows, sums)
        weight.index_add_(0, rows, values / sums.sqrt_().add_(self._EPS), alpha=-self._lr)


def _summed(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that a sparse gradient is of, each once, and what it is of each."""
    if not gradient.is_cuda:
        gradient = gradient.coalesce()
        return gradient._indices()[0], gradient._values()
    # There `coalesce` adds up a row's values one after the other, and where a field has few ids,
    # a batch has thousands of one. What a dense gradient is made with adds them up in pieces,
    # always the same ones.
    rows, places = torch.unique(gradient._indices()[0], return_inverse=True)
    values: Tensor = torch.ops.aten.embedding_dense_backward(
        gradient._values(), places, num_weights=len(rows), padding_idx=-1, scale_grad_by_freq=False
    )
    return rows, values


class Sgd:
    """Stochastic gradient descent, with momentum where it is not 0."""

    name = "SGD"
    remembers = {"momentum_buffer"}
    of_all = False

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, momentum: float) -> None:
        self.parameters = parameters
        self._lr = lr
        self._momentum = momentum
        self._buffers: dict[int, Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """See `Rule`."""
        for index, weight in enumerate(self.parameters):
            if weight.grad is not None:
                direction = self._heavy(index, weight.grad) if self._momentum else weight.grad
                weight.add_(direction, alpha=-self._lr)

    def memory(self) -> Memory:
        """See `Rule`."""
        return {index: {"momentum_buffer": buffer} for index, buffer in self._buffers.items()}

    def remember(self, memory: Memory) -> None:
        """See `Rule`."""
        self._buffers = {index: kept["momentum_buffer"] for index, kept in memory.items()}

    def _heavy(self, index: int, gradient: Tensor) -> Tensor:
        """The gradient with those before it, each counting less."""
        if index not in self._buffers:
            self._buffers[index] = gradient.clone()
        else:
            self._buffers[index].mul_(self._momentum).add_(gradient)
        return self._buffers[index]


class Adam:
    """Adam as torch has it, or its form for sparse gradients."""

    remembers = {"step", "exp_avg", "exp_avg_sq"}
    of_all = False

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, *, sparse: bool) -> None:
        kind = torch.optim.SparseAdam if sparse else torch.optim.Adam
        self.name = kind.__name__
        self.parameters = parameters
        self._optimizer: torch.optim.Optimizer = kind(parameters, lr=lr)

    def update(self) -> None:
        """See `Rule`."""
        self._optimizer.step()

    def memory(self) -> Memory:
        """See `Rule`."""
        state: Memory = self._optimizer.state_dict()["state"]
        return state

    def remember(self, memory: Memory) -> None:
        """See `Rule`."""
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": memory})
