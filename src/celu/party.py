"""The two kinds of party, `Host` and `Guest`: their modules and datasets.

A module is any `nn.Module`: nothing to inherit, nothing to wrap. A bottom is called with the
inputs of a batch by name, `bottom(**inputs)`, and returns Z, [B, width]. The top is called with
every Z in order, `top(z_guest, z_host, ...)`: the guest's own first, if it has a bottom, then the
hosts' in the order of the job.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from celu.config.class_weights import ClassWeights, ClassWeightsLike, parse_class_weights
from celu.data.dataset import Dataset
from celu.errors import ConfigError
from celu.models.losses import LOSSES, Loss, LossLike, as_loss


@dataclass(frozen=True, kw_only=True)
class Host:
    """A party with features only (Party A)."""

    bottom: nn.Module
    train: Dataset
    test: Dataset


@dataclass(frozen=True, kw_only=True, init=False)
class Guest:
    """The party with labels (Party B). A guest without features has no bottom.

    `loss` is a name ("binary", "multiclass", "regression"), a callable `loss(output, labels)` that
    returns one value for each row, or a `celu.Loss` with metrics of its own.

    `class_weights` say how much the rows of each class count in training: "balanced", so that all
    classes count the same in total, or values by class, 1 for those that are not named. They
    multiply the weights of rows, and do not change metrics.
    """

    bottom: nn.Module | None
    top: nn.Module
    loss: Loss
    train: Dataset
    test: Dataset
    class_weights: ClassWeights | None

    def __init__(
        self,
        *,
        bottom: nn.Module | None = None,
        top: nn.Module,
        loss: LossLike,
        train: Dataset,
        test: Dataset,
        class_weights: ClassWeightsLike | None = None,
    ) -> None:
        loss = as_loss(loss)
        for name, value in {
            "bottom": bottom,
            "top": top,
            "loss": loss,
            "train": train,
            "test": test,
            "class_weights": _class_weights(class_weights, loss),
        }.items():
            object.__setattr__(self, name, value)


def _class_weights(given: ClassWeightsLike | None, loss: Loss) -> ClassWeights | None:
    if given is None:
        return None
    if loss is LOSSES["regression"]:
        raise ConfigError(
            'class_weights: expected labels that are classes, got the loss "regression"; use '
            "weights of rows"
        )
    try:
        return parse_class_weights(given)
    except ValueError as error:
        raise ConfigError(f"class_weights: {error}") from error
