"""The two kinds of party, `Host` and `Guest`: their modules and datasets.

A module is any `nn.Module`: nothing to inherit, nothing to wrap. A bottom is called with the
inputs of a batch by name, `bottom(**inputs)`, and returns Z, [B, width]. The top is called with
every Z in order, `top(z_guest, z_host, ...)`: the guest's own first, if it has a bottom, then the
hosts' in the order of the job.

With `validation` rows, which all parties must pass, evaluations during training score them, and
the weights of the best evaluation are the result. The test rows are then scored once, at the end.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from celu.config.class_weights import ClassWeights, ClassWeightsLike, parse_class_weights
from celu.config.schema import HeldOut
from celu.data.dataset import Dataset
from celu.data.labelled_rows import LabelledRows
from celu.data.store import Store
from celu.errors import ConfigError, DataError, ModelError
from celu.label_map import LabelMap
from celu.metrics.own import MetricLike, as_metrics
from celu.models.fit_labels import check_both_classes, fit_label_map, recode
from celu.models.losses import Loss, LossLike, as_loss
from celu.models.user_code import name_of


@dataclass(frozen=True, kw_only=True)
class Host:
    """A party with features only (Party A).

    `noise_key`, for a job with `privacy.z_noise`, is the secret of its noise: the path of a file,
    which is created if it does not exist, or random bytes. A run resumes with the same key only.
    """

    bottom: nn.Module
    train: Dataset
    test: Dataset
    validation: Dataset | None = None
    noise_key: bytes | Path | str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raise ModelError or DataError for what is no module, or no rows."""
        _check_module("bottom", self.bottom)
        _check_rows(self.train, self.test, self.validation)

    def held_out(self, part: HeldOut) -> Dataset:
        """The validation or test rows."""
        return self.test if part == "test" or self.validation is None else self.validation


@dataclass(frozen=True, kw_only=True, init=False)
class Guest:
    """The party with labels (Party B). A guest without features has no bottom.

    `loss` is a name ("binary", "multiclass", "regression"), a callable `loss(output, labels)` that
    returns one value for each row, or a `celu.Loss`, which says more about it. `metrics` are what
    evaluations report besides the loss: names, and functions declared with `celu.metric`; by
    default all that fit the loss. `label_map` says how labels become what the loss takes. Raises
    DataError for labels that the loss cannot take, ModelError for what is no module.

    `class_weights` say how much the rows of each class count in training: "balanced", so that all
    classes count the same in total, or values by class, 1 for those that are not named. They
    multiply the weights of rows, and do not change metrics.

    `label_key`, for a job with `privacy.label_epsilon`, is the secret that decides which labels are
    randomized: the path of a file, which is created if it does not exist, or random bytes, of which
    no ledger is written. With the same key, the same rows and labels are randomized once for all
    runs; other rows or labels are another release. `noise_key`, for `privacy.dz_noise`, is the
    secret of its noise; see `Host`.
    """

    bottom: nn.Module | None
    top: nn.Module
    loss: Loss
    train: Dataset
    test: Dataset
    validation: Dataset | None
    metrics: tuple[MetricLike, ...] | None
    class_weights: ClassWeights | None
    label_key: bytes | Path | None = field(repr=False)
    noise_key: bytes | Path | None = field(repr=False)
    label_map: LabelMap = field(init=False)
    labelled_rows: LabelledRows = field(init=False, repr=False)

    def __init__(
        self,
        *,
        bottom: nn.Module | None = None,
        top: nn.Module,
        loss: LossLike,
        train: Dataset,
        test: Dataset,
        validation: Dataset | None = None,
        metrics: MetricLike | Iterable[MetricLike] | None = None,
        class_weights: ClassWeightsLike | None = None,
        label_key: bytes | Path | str | None = None,
        noise_key: bytes | Path | str | None = None,
    ) -> None:
        for name, module in {"bottom": bottom, "top": top}.items():
            if module is not None or name == "top":
                _check_module(name, module)
        _check_rows(train, test, validation)
        loss = as_loss(loss)
        test = _with_classes_of(train, test)
        if validation is not None:
            validation = _with_classes_of(train, validation)
        label_map = LabelMap()
        if train.labels is not None:  # else a run refuses the rows
            parts = {"test": test.labels}
            if validation is not None:
                parts["validation"] = validation.labels
            held_out = {part: labels for part, labels in parts.items() if labels is not None}
            label_map = fit_label_map(loss, train.labels, held_out, train.classes)
            for part, labels in held_out.items():
                check_both_classes(label_map, loss, part, labels)
        for name, value in {
            "bottom": bottom,
            "top": top,
            "loss": loss,
            "train": train,
            "test": test,
            "validation": validation,
            "metrics": as_metrics(metrics),
            "class_weights": _class_weights(class_weights, loss),
            "label_key": Path(label_key) if isinstance(label_key, str) else label_key,
            "noise_key": Path(noise_key) if isinstance(noise_key, str) else noise_key,
            "label_map": label_map,
            "labelled_rows": LabelledRows(_by_part(train, test, validation)),
        }.items():
            object.__setattr__(self, name, value)

    def of_store(self, store: Store) -> Guest:
        """The same guest, whose rows are some of a store's, with the labels that the store has.

        Then all alignments of the store share their randomized labels.
        """
        other = copy.copy(self)
        object.__setattr__(other, "labelled_rows", LabelledRows(store))
        return other

    def held_out(self, part: HeldOut) -> Dataset:
        """The validation or test rows."""
        return self.test if part == "test" or self.validation is None else self.validation


def _by_part(train: Dataset, test: Dataset, validation: Dataset | None) -> dict[str, Dataset]:
    parts = {"train": train, "test": test}
    return parts if validation is None else {**parts, "validation": validation}


def _check_module(which: str, module: object) -> None:
    """Raise ModelError unless it is an nn.Module."""
    if isinstance(module, nn.Module):
        return
    got, step = f"an object of {name_of(module)}", "pass a module"
    if isinstance(module, type):
        got, step = f"the class {name_of(module)}", "create a module of it"
    elif callable(module):
        got = f"the function {name_of(module)}"
        step = "call it in the forward of a module of your own"
    raise ModelError(f"{which}: expected an nn.Module, got {got}; {step}")


def _check_rows(train: object, test: object, validation: object) -> None:
    """Raise DataError unless they are datasets; validation rows may be None."""
    for part, rows in {"train": train, "test": test, "validation": validation}.items():
        if not isinstance(rows, Dataset) and not (part == "validation" and rows is None):
            raise DataError(
                f"{part}: expected a celu.Dataset, got an object of {name_of(rows)}; make one of "
                "its arrays: celu.Dataset({...}, labels)"
            )


def _class_weights(given: ClassWeightsLike | None, loss: Loss) -> ClassWeights | None:
    if given is None:
        return None
    if loss.labels == "regression":
        raise ConfigError(
            "class_weights: expected labels that are classes, got a loss of numbers; use weights "
            "of rows"
        )
    try:
        return parse_class_weights(given)
    except ValueError as error:
        raise ConfigError(f"class_weights: {error}") from error


def _with_classes_of(train: Dataset, rows: Dataset) -> Dataset:
    """Rows whose labels are codes of the training rows' classes; raises DataError."""
    if train.labels is None or rows.labels is None or train.classes == rows.classes:
        return rows
    if train.classes is None or rows.classes is None:
        raise DataError(
            "the labels: expected text in training and held-out rows or in neither, got it in some"
        )
    return rows.with_labels(recode(rows.labels, rows.classes, train.classes), train.classes)
