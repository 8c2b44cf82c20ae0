"""Losses, with one value per row, and the metrics that belong to each.

A user's own loss is any function of (output, labels) that returns [B] values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from celu.errors import ConfigError

PerInstance = Callable[[Tensor, Tensor], Tensor]
Metrics = Callable[[Tensor, Tensor], dict[str, float]]


def _no_metrics(output: Tensor, labels: Tensor) -> dict[str, float]:
    del output, labels
    return {}


@dataclass(frozen=True)
class Loss:
    """A loss and its metrics by name. The mean loss of the test rows is always reported."""

    per_instance: PerInstance
    metrics: Metrics = _no_metrics
    metric_names: tuple[str, ...] = ()


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
    logits_B = output.reshape(-1) if output.numel() == len(labels) else output
    return F.binary_cross_entropy_with_logits(logits_B, labels.to(output.dtype), reduction="none")


def _multiclass(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels.long(), reduction="none")


def _regression(output: Tensor, labels: Tensor) -> Tensor:
    values_B = output.reshape(-1) if output.numel() == len(labels) else output
    return F.mse_loss(values_B, labels.to(output.dtype), reduction="none")


def auc(scores: Tensor, labels: Tensor) -> float:
    """The exact area under the ROC curve: ties count half; NaN for one class or a NaN score."""
    scores, labels = scores.reshape(-1).double(), labels.reshape(-1) > 0.5
    num_positive = int(labels.sum())
    num_negative = len(labels) - num_positive
    if num_positive == 0 or num_negative == 0 or bool(scores.isnan().any()):
        return math.nan
    _, tie_of, tie_sizes = torch.unique(scores, return_inverse=True, return_counts=True)
    # Ranks start at 1; rows with equal scores share the mean rank of their tie.
    last_ranks = tie_sizes.cumsum(0).double()
    mean_ranks = last_ranks - (tie_sizes.double() - 1) / 2
    rank_sum = float(mean_ranks[tie_of[labels]].sum())
    return (rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def _accuracy(output: Tensor, labels: Tensor) -> float:
    if bool(output.isnan().any()):  # argmax would choose it
        return math.nan
    return float((output.argmax(dim=1) == labels).double().mean())


def _rmse(output: Tensor, labels: Tensor) -> float:
    return math.sqrt(float((output.reshape(-1).double() - labels.double()).square().mean()))


LOSSES: dict[str, Loss] = {
    "binary": Loss(_binary, lambda output, labels: {"auc": auc(output, labels)}, ("auc",)),
    "multiclass": Loss(
        _multiclass, lambda output, labels: {"accuracy": _accuracy(output, labels)}, ("accuracy",)
    ),
    "regression": Loss(
        _regression, lambda output, labels: {"rmse": _rmse(output, labels)}, ("rmse",)
    ),
}

# Whether higher is better, for the metrics that a contract may use as its target.
HIGHER_IS_BETTER = {"auc": True, "accuracy": True, "loss": False, "rmse": False}
