"""AdaGrad and SGD as torch has them, with fewer operations.

On a CPU an update's bits are torch's own. An embedding's sparse gradient takes less time, the more
the wider it is; and an accelerator, which waits to be told what to do rather than for it to be
done, is told less. It is an `update`, for around a method `step` torch lays hooks and profiling.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Adagrad(torch.optim.Adagrad):
    """See `torch.optim.Adagrad`, whose state it keeps; its rate does not decay."""

    @torch.no_grad()
    def update(self) -> None:
        """Apply the gradients."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            dense = [weight for weight in weights if not weight.grad.is_sparse]
            lr, eps = group["lr"], group["eps"]
            for weight in weights:
                self.state[weight]["step"] += 1
                if weight.grad.is_sparse:
                    _apply_sparse(weight, self.state[weight]["sum"], weight.grad, lr, eps)
            if dense:
                sums = [self.state[weight]["sum"] for weight in dense]
                _apply_dense(dense, sums, [weight.grad for weight in dense], lr, eps)


class Sgd(torch.optim.SGD):
    """See `torch.optim.SGD`, of which it has the rate and the momentum alone."""

    @torch.no_grad()
    def update(self) -> None:
        """Apply the gradients."""
        for group in self.param_groups:
            if group["momentum"]:
                self.step()
                return
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.add_(weight.grad, alpha=-group["lr"])


def _apply_dense(
    weights: list[Tensor], sums: list[Tensor], gradients: list[Tensor], lr: float, eps: float
) -> None:
    torch._foreach_addcmul_(sums, gradients, gradients, value=1.0)
    roots = torch._foreach_sqrt(sums)
    torch._foreach_add_(roots, eps)
    torch._foreach_addcdiv_(weights, gradients, roots, value=-lr)


def _apply_sparse(weight: Tensor, total: Tensor, gradient: Tensor, lr: float, eps: float) -> None:
    gradient = gradient.coalesce()
    rows, values = gradient._indices()[0], gradient._values()
    sums = total.index_select(0, rows).add_(values.pow(2))
    total.index_copy_(0, rows, sums)
    weight.index_add_(0, rows, values / sums.sqrt_().add_(eps), alpha=-lr)
