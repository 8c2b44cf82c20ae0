"""Losses, with one value per row, and what a model's output predicts under each.

A user's own loss is any function of (output, labels) that returns [B] values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from celu.errors import ConfigError, ModelError
from celu.metrics.names import Output

PerInstance = Callable[[Tensor, Tensor], Tensor]
_MAX_EXACT_OUTPUTS = 64  # with more, the trace of the Hessian is estimated
_RANDOM_PROBES = 16


@dataclass(frozen=True)
class Loss:
    """A loss, and what the model's output predicts under it.

    `is_log_loss`: it is the negative log-likelihood of the labels under the model's output (with
    scale 1). Its curvature is then known to be 1, and need not be estimated. `output` says what a
    prediction is: "binary", the sigmoid of the model's output; "multiclass", its softmax;
    "regression", the output as it is. Where a loss does not declare it, a prediction is the output
    as it is, and a run reports the metrics that fit the labels whatever the output's scale.
    `labels` says which labels it takes: "binary", any two values, as 0 and 1; "multiclass", codes
    from 0; "regression", numbers, scaled to mean 0 and deviation 1, with predictions in their own
    units; None, labels as they are.
    """

    per_instance: PerInstance
    is_log_loss: bool = False
    output: Output | None = None
    labels: Output | None = None

    @property
    def prediction(self) -> Output:
        """What a prediction is."""
        return self.output or "regression"

    def has_unit_curvature(self, weights_B: Tensor | None = None) -> bool:
        """Whether the curvature is known to be 1: that of a log loss, if rows have no weights."""
        return self.is_log_loss and weights_B is None

    def curvature(self, output: Tensor, labels: Tensor, weights_B: Tensor | None = None) -> float:
        """How many times its squared gradient the loss curves, on average over a batch.

        That is sum(trace of the Hessian) / sum(squared gradient), both with respect to the output;
        0 where it is negative or undefined. For a log loss the trace is the squared gradient, by
        Fisher's identity, so it is 1. With `weights_B`, it is that of the weighted losses. A host
        needs it to correct a stale derivative (docs/method.md). Raises ModelError for a loss that
        cannot be differentiated twice.
        """
        if self.has_unit_curvature(weights_B):
            return 1.0
        with torch.enable_grad():
            leaf = output.detach().requires_grad_()
            losses_B = self.per_instance(leaf, labels)
            if self.is_log_loss and weights_B is not None:
                (slope,) = torch.autograd.grad(losses_B.sum(), leaf)
                squares_B = slope.reshape(len(slope), -1).square().sum(dim=1)
                ratio = (weights_B * squares_B).sum() / (weights_B.square() * squares_B).sum()
                return _not_negative(float(ratio))
            losses = (losses_B if weights_B is None else weights_B * losses_B).sum()
            try:
                (slope,) = torch.autograd.grad(losses, leaf, create_graph=True)
                trace = _hessian_trace(slope, leaf)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise ModelError(
                    f"the loss cannot be differentiated twice ({error}), which correcting stale "
                    "derivatives requires. Use another weighting, or, if the loss is a negative "
                    "log-likelihood, declare it: celu.Loss(..., is_log_loss=True)"
                ) from error
        # A single synchronization on a GPU.
        return _not_negative(float(trace / slope.detach().square().sum()))


def _not_negative(ratio: float) -> float:
    return max(ratio, 0.0) if math.isfinite(ratio) else 0.0


def _hessian_trace(slope: Tensor, leaf: Tensor) -> Tensor:
    """The trace of the Hessian with respect to `leaf`, of which `slope` is the gradient."""
    trace = slope.new_zeros(())
    if not slope.requires_grad:  # the loss is linear
        return trace
    for probe in _probes(slope):
        (product,) = torch.autograd.grad(
            slope, leaf, probe, retain_graph=True, materialize_grads=True
        )
        trace = trace + (probe * product).sum()
    return trace


def _probes(slope: Tensor) -> Iterator[Tensor]:
    """Vectors v of which the sum of v'Hv is the trace of H: exact, or Hutchinson's estimate.

    The loss of a row depends on its own outputs only, so one vector probes all rows at once.
    """
    rows, outputs = len(slope), slope[:1].numel()
    if outputs <= _MAX_EXACT_OUTPUTS:
        for k in range(outputs):
            probe_BK = slope.new_zeros(rows, outputs)
            probe_BK[:, k] = 1
            yield probe_BK.reshape(slope.shape)
        return
    random = torch.Generator().manual_seed(0)  # of its own: the run's random draws stay as they are
    for _ in range(_RANDOM_PROBES):
        signs = torch.randint(0, 2, slope.shape, generator=random) * 2.0 - 1
        yield signs.to(slope) / math.sqrt(_RANDOM_PROBES)


class ConstantLoss(NamedTuple):
    """The loss of the best constant prediction: its mean, and its deviation from row to row."""

    mean: float
    deviation: float

    def of_batch(self, rows: int) -> ConstantLoss:
        """The same for the mean loss of a batch."""
        return ConstantLoss(self.mean, self.deviation / math.sqrt(rows))


def constant_loss(kind: Output, labels: Tensor) -> ConstantLoss:
    """What can be reached without learning anything from the features.

    A log loss varies by 0.5 at least, as soon as predictions differ, also where a constant one has
    the same loss for all labels.
    """
    labels = labels.reshape(-1).double()
    if kind == "regression":
        squares = (labels - labels.mean()).square()
        mean = squares.mean()
        return ConstantLoss(float(mean), float(torch.maximum(squares.std(correction=0), mean)))
    shares = torch.unique(labels, return_counts=True)[1] / len(labels)
    losses = -shares.log()
    entropy = (shares * losses).sum()
    variance = (shares * (losses - entropy).square()).sum()
    return ConstantLoss(float(entropy), max(0.5, math.sqrt(float(variance))))


def to_scores(output: Tensor, kind: Output) -> Tensor:
    """A model's output as predictions in float64: [B], or [B, K] probabilities of classes.

    In float32 the sigmoids of different outputs may be equal, which would change an AUC.
    """
    output = output.double()
    if kind == "binary":
        return output.reshape(-1).sigmoid()
    if kind == "multiclass":
        return output.softmax(dim=1)
    return output.reshape(-1) if output.numel() == len(output) else output


LossLike = Loss | PerInstance | str


def as_loss(loss: LossLike) -> Loss:
    """A loss by name, from a callable or as it is; raises ConfigError for an unknown name."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        return Loss(loss)
    if loss not in LOSSES:
        known = ", ".join(f'"{name}"' for name in LOSSES)
        raise ConfigError(f"loss: expected one of {known} or a callable, got {loss!r}")
    return LOSSES[loss]


def _binary(output: Tensor, labels: Tensor) -> Tensor:
    """The log loss of the sigmoid of one output. Labels: any two values."""
    logits_B = output.reshape(-1) if output.numel() == len(labels) else output
    return F.binary_cross_entropy_with_logits(logits_B, labels.to(output.dtype), reduction="none")


def _multiclass(output: Tensor, labels: Tensor) -> Tensor:
    """The log loss of the softmax of one output per class. Labels: text, or codes from 0."""
    return F.cross_entropy(output, labels.long(), reduction="none")


def _regression(output: Tensor, labels: Tensor) -> Tensor:
    """The squared error of one output. Labels: numbers, which are scaled."""
    values_B = output.reshape(-1) if output.numel() == len(labels) else output
    return F.mse_loss(values_B, labels.to(output.dtype), reduction="none")


LOSSES: dict[str, Loss] = {
    "binary": Loss(_binary, is_log_loss=True, output="binary", labels="binary"),
    "multiclass": Loss(_multiclass, is_log_loss=True, output="multiclass", labels="multiclass"),
    "regression": Loss(_regression, output="regression", labels="regression"),
}
