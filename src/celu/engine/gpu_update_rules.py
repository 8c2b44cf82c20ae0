"""Update rules on a GPU: the rules of `update_rules` with nothing read back from the device.

The learning rate is a number on the device, so a step can be captured as a CUDA graph and replayed
with another rate. Updates of embedding tables, and AdaGrad's, are kernels of ours
(`gpu_kernels`). Needs Triton.
Results equal those on a CPU within rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from celu.engine import update_rules
from celu.engine.gpu_kernels import SortedGradient, apply_dense_adagrad
from celu.engine.update_rules import RuleState


class _RateOnDevice:
    """The learning rate of a rule, whose state is loaded into the tensors that it has."""

    is_in_place = True
    _rate: Tensor

    @property
    def lr(self) -> Tensor:
        """See `Rule`."""
        return self._rate

    @lr.setter
    def lr(self, lr: float) -> None:
        self._rate.fill_(lr)


def _copy_state(live: RuleState, state: RuleState) -> None:
    """Write a state where the live one is, as a CUDA graph uses it; 0 where it has nothing yet."""
    for index, values in live.items():
        for key, tensor in values.items():
            tensor.copy_(state[index][key]) if index in state else tensor.zero_()


class Adagrad(_RateOnDevice, update_rules.Adagrad):  # type: ignore[misc]  # the rate's type
    """AdaGrad; see `update_rules.Adagrad`."""

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, accumulator: float) -> None:
        self._rate = torch.tensor(lr, device=parameters[0].device)
        super().__init__(parameters, lr, accumulator)

    def load_state(self, state: RuleState) -> None:
        """See `Rule`."""
        _copy_state(self.state(), state)

    def _apply_dense(
        self, weights: list[Tensor], sums: list[Tensor], gradients: list[Tensor]
    ) -> None:
        for weight, total, gradient in zip(weights, sums, gradients, strict=True):
            apply_dense_adagrad(weight, total, gradient, self._rate, self._EPS)

    def _apply_sparse(self, weight: Tensor, total: Tensor, gradient: Tensor) -> None:
        SortedGradient(gradient).apply_adagrad(weight, total, self._rate, self._EPS)


class Sgd(_RateOnDevice, update_rules.Sgd):  # type: ignore[misc]  # the rate's type
    """SGD; see `update_rules.Sgd`."""

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, momentum: float) -> None:
        self._rate = torch.tensor(lr, device=parameters[0].device)
        super().__init__(parameters, lr, momentum)

    def load_state(self, state: RuleState) -> None:
        """See `Rule`. A buffer of 0 gives the first step that no buffer gives."""
        super().load_state({**state, **self.state()})
        _copy_state(self.state(), state)

    def _apply(self, weight: Tensor, direction: Tensor) -> None:
        if direction.is_sparse:
            SortedGradient(direction).apply_sgd(weight, self._rate)
        else:
            weight.sub_(direction * self._rate)


class Adam(_RateOnDevice, update_rules.Adam):  # type: ignore[misc]  # the rate's type
    """torch's Adam; see `update_rules.Adam`."""

    def _make(self, lr: float) -> torch.optim.Optimizer:
        self._rate = torch.tensor(lr, device=self.parameters[0].device)
        return torch.optim.Adam(self.parameters, lr=self._rate, capturable=True)

    def load_state(self, state: RuleState) -> None:
        """See `Rule`. A state of 0 gives the first step that none gives."""
        live = self.state()
        if live:
            _copy_state(live, state)
            return
        super().load_state(state)
        self._optimizer.param_groups[0]["lr"] = self._rate  # not a copy of it


class SparseAdam(_RateOnDevice):
    """torch's SparseAdam, with the number of steps on the device."""

    name = "SparseAdam"
    state_keys = {"step", "exp_avg", "exp_avg_sq"}
    has_initial_state = False
    _EPS, _BETAS = 1e-8, (0.9, 0.999)

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float) -> None:
        self._rate = torch.tensor(lr, device=parameters[0].device)
        self.parameters = parameters
        self._state: RuleState = {}

    @torch.no_grad()
    def step(self) -> None:
        """See `Rule`."""
        first, second = self._BETAS
        for index, weight in enumerate(self.parameters):
            if weight.grad is None:
                continue
            state = self._state.setdefault(index, {}) or self._begin(index, weight)
            step = state["step"].add_(1)
            size = (self._rate * (1 - second**step).sqrt() / (1 - first**step)).float()
            averages = state["exp_avg"], state["exp_avg_sq"]
            SortedGradient(weight.grad).apply_adam(weight, averages, size, self._EPS, self._BETAS)

    def state(self) -> RuleState:
        """See `Rule`."""
        return self._state

    def load_state(self, state: RuleState) -> None:
        """See `Rule`. The number of steps may be one that another device counted."""
        for index in state.keys() - self._state.keys():
            self._begin(index, self.parameters[index])
        _copy_state(self._state, state)

    def _begin(self, index: int, weight: Tensor) -> dict[str, Any]:
        self._state[index] = {
            "step": _on(weight.device, 0),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }
        return self._state[index]


def _on(device: torch.device, number: Any) -> Tensor:
    return torch.as_tensor(number, dtype=torch.float64, device=device)
