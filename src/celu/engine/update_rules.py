"""Update rules: AdaGrad and SGD with fewer operations than torch's, and torch's Adam.

On a CPU the results equal those of `torch.optim` bit for bit. Ours are faster on sparse gradients
of wide embeddings, and do not import torch's compiler, which takes a second or two at the start of
a run. On a GPU with Triton, `gpu_update_rules` are used instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from celu.engine.gradients import sum_rows

# Set explicitly, since torch warns if it is not set.
torch.sparse.check_sparse_tensor_invariants.disable()

RuleState = dict[int, dict[str, Any]]  # by parameter index, then by state key


class Rule(Protocol):
    """An optimizer for a group of parameters."""

    name: str
    parameters: Sequence[nn.Parameter]
    state_keys: set[str]  # of each parameter; values are numbers or tensors of its shape
    has_initial_state: bool  # False if a parameter has no state before its first update
    is_in_place: bool  # whether the rate and all state stay where they are, as a CUDA graph needs

    @property
    def lr(self) -> float | Tensor:
        """The learning rate of the next step."""
        ...

    @lr.setter
    def lr(self, lr: float) -> None: ...

    def step(self) -> None:
        """Apply the gradients."""
        ...

    def state(self) -> RuleState:
        """The live state, not a copy: the next step writes to it."""
        ...

    def load_state(self, state: RuleState) -> None:
        """Use this state from now on, without a copy: steps write to it."""
        ...


class Adagrad:
    """AdaGrad without learning rate decay."""

    name = "Adagrad"
    state_keys = {"sum"}
    has_initial_state = True
    is_in_place = False
    _EPS = 1e-10

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, accumulator: float) -> None:
        self.parameters = parameters
        self.lr = lr
        self._sums = [torch.full_like(p, accumulator, requires_grad=False) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
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
            self._apply_dense(weights, sums, gradients)

    def state(self) -> RuleState:
        """See `Rule`."""
        return {index: {"sum": total} for index, total in enumerate(self._sums)}

    def load_state(self, state: RuleState) -> None:
        """See `Rule`."""
        self._sums = [state[index]["sum"] for index in range(len(self.parameters))]

    def _apply_dense(
        self, weights: list[Tensor], sums: list[Tensor], gradients: list[Tensor]
    ) -> None:
        torch._foreach_addcmul_(sums, gradients, gradients, value=1.0)
        roots = torch._foreach_sqrt(sums)
        torch._foreach_add_(roots, self._EPS)
        torch._foreach_addcdiv_(weights, gradients, roots, value=-self.lr)

    def _apply_sparse(self, weight: Tensor, total: Tensor, gradient: Tensor) -> None:
        rows, values = sum_rows(gradient)
        sums = total.index_select(0, rows).add_(values.pow(2))
        total.index_copy_(0, rows, sums)
        weight.index_add_(0, rows, values / sums.sqrt_().add_(self._EPS), alpha=-self.lr)


class Sgd:
    """Stochastic gradient descent, with momentum unless it is 0."""

    name = "SGD"
    state_keys = {"momentum_buffer"}
    has_initial_state = False
    is_in_place = False

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, momentum: float) -> None:
        self.parameters = parameters
        self.lr = lr
        self._momentum = momentum
        self._buffers: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """See `Rule`."""
        for index, weight in enumerate(self.parameters):
            if weight.grad is not None:
                direction = self._accumulate(index, weight.grad) if self._momentum else weight.grad
                self._apply(weight, direction)

    def state(self) -> RuleState:
        """See `Rule`."""
        return {index: {"momentum_buffer": buffer} for index, buffer in self._buffers.items()}

    def load_state(self, state: RuleState) -> None:
        """See `Rule`."""
        self._buffers = {index: values["momentum_buffer"] for index, values in state.items()}

    def _apply(self, weight: Tensor, direction: Tensor) -> None:
        weight.add_(direction, alpha=-self.lr)

    def _accumulate(self, index: int, gradient: Tensor) -> Tensor:
        """The momentum buffer after adding a gradient."""
        if index not in self._buffers:
            self._buffers[index] = gradient.clone()
        else:
            self._buffers[index].mul_(self._momentum).add_(gradient)
        return self._buffers[index]


class Adam:
    """torch's Adam."""

    name = "Adam"
    state_keys = {"step", "exp_avg", "exp_avg_sq"}
    has_initial_state = False
    is_in_place = False

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float) -> None:
        self.parameters = parameters
        self._optimizer = self._make(lr)

    def _make(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters, lr=lr)

    @property
    def lr(self) -> float:
        """See `Rule`."""
        lr: float = self._optimizer.param_groups[0]["lr"]
        return lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._optimizer.param_groups[0]["lr"] = lr

    def step(self) -> None:
        """See `Rule`."""
        self._optimizer.step()

    def state(self) -> RuleState:
        """See `Rule`."""
        state: RuleState = self._optimizer.state_dict()["state"]
        return state

    def load_state(self, state: RuleState) -> None:
        """See `Rule`."""
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})


class SparseAdam(Adam):
    """torch's SparseAdam, for sparse gradients."""

    name = "SparseAdam"

    def _make(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam(self.parameters, lr=lr)
