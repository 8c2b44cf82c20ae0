"""The two kinds of party, `Host` and `Guest`: their modules and datasets.

A module is any `nn.Module`: nothing to inherit, nothing to wrap. A bottom is called with the
inputs of a batch by name, `bottom(**inputs)`, and returns Z, [B, width]. The top is called with
every Z in order, `top(z_guest, z_host, ...)`: the guest's own first, if it has a bottom, then the
hosts' in the order of the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from celu.data.dataset import Dataset
from celu.errors import DataError
from celu.label_map import LabelMap
from celu.metrics.own import MetricLike, as_metrics
from celu.models.fit_labels import check_both_classes, fit_label_map, recode
from celu.models.losses import Loss, LossLike, as_loss


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
    returns one value for each row, or a `celu.Loss`, which says more about it. `metrics` are what
    evaluations report besides the loss: names, and functions declared with `celu.metric`; by
    default all that fit the loss. `label_map` says how labels become what the loss takes. Raises
    DataError for labels that the loss cannot take.
    """

    bottom: nn.Module | None
    top: nn.Module
    loss: Loss
    train: Dataset
    test: Dataset
    metrics: tuple[MetricLike, ...] | None
    label_map: LabelMap = field(init=False)

    def __init__(
        self,
        *,
        bottom: nn.Module | None = None,
        top: nn.Module,
        loss: LossLike,
        train: Dataset,
        test: Dataset,
        metrics: MetricLike | Iterable[MetricLike] | None = None,
    ) -> None:
        loss = as_loss(loss)
        test = _with_classes_of(train, test)
        label_map = LabelMap()
        if train.labels is not None and test.labels is not None:  # else a run refuses the rows
            label_map = fit_label_map(loss, train.labels, test.labels, train.classes)
            check_both_classes(label_map, loss, test.labels)
        for name, value in {
            "bottom": bottom,
            "top": top,
            "loss": loss,
            "train": train,
            "test": test,
            "metrics": as_metrics(metrics),
            "label_map": label_map,
        }.items():
            object.__setattr__(self, name, value)


def _with_classes_of(train: Dataset, test: Dataset) -> Dataset:
    """Test rows whose labels are codes of the training rows' classes; raises DataError."""
    if train.labels is None or test.labels is None or train.classes == test.classes:
        return test
    if train.classes is None or test.classes is None:
        raise DataError(
            "the labels: expected text in both training and test rows or in neither, got it in one"
        )
    return test.with_labels(recode(test.labels, test.classes, train.classes), train.classes)
