"""Compares labels with a loss, and fits how they are mapped.

Labels are read in chunks: they may be mapped from a file larger than memory. Errors name counts,
never a label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from celu.config.schema import ClassLabel
from celu.errors import DataError, ModelError
from celu.label_map import MAX_CLASSES, LabelMap, are_codes
from celu.metrics.names import METRICS, UNDEFINED_FOR_SOME_LABELS
from celu.models.losses import Loss

_CHUNK = 1 << 20
_NUMBER = re.compile(r"[^\w.,]*\d[\d.,' ]*[^\w.,]*")  # with separators, and signs as units

Values = npt.NDArray[np.float64]


def fit_label_map(
    loss: Loss,
    train: Tensor,
    held_out: Mapping[str, Tensor],
    classes: Sequence[ClassLabel] | None,
) -> LabelMap:
    """Compare labels with a loss, and fit how they are mapped.

    `held_out` are the labels of other parts, by name: they must fit, too.
    `classes` are those of text labels, or the two values of a store's label, negative first. A
    loss that takes labels as they are is given them so. Raises DataError.
    """
    names = [name for name in classes or () if isinstance(name, str)]
    if loss.labels is None:
        return LabelMap(classes=list(names) if names and loss.prediction != "regression" else None)
    parts = {"training": train, **held_out}
    for part, labels in parts.items():
        _check_values(part, labels)
    if loss.labels == "regression":
        return _fit_number(train, names)
    if loss.labels == "binary":
        return _fit_two_classes(train, parts, classes)
    return _fit_classes(train, parts, names)


def _check_values(part: str, labels: Tensor) -> None:
    if labels.dim() != 1:
        raise DataError(
            f"the labels of the {part} rows: expected one value per row, [{len(labels)}], got "
            f"{list(labels.shape)}; reshape them"
        )
    bad = sum(int((~np.isfinite(values)).sum()) for values in _chunks(labels))
    if bad:
        raise DataError(
            f"the labels of the {part} rows: expected finite numbers, got NaN or Inf in {bad:,} "
            "rows; replace them or drop those rows"
        )


def _fit_number(train: Tensor, names: Sequence[str]) -> LabelMap:
    if names:
        advice = 'choose the loss "multiclass", or "binary" for two classes'
        if all(map(_NUMBER.fullmatch, names)):
            advice = (
                "they look like numbers: declare their separators and units under [source] in "
                "schema.toml and prepare the rows again, or pass numbers in Python"
            )
        raise DataError(
            f'the labels: expected numbers for the loss "regression", got text of {len(names):,} '
            f"classes; {advice}"
        )
    num_rows = max(len(train), 1)
    mean = sum(float(values.sum()) for values in _chunks(train)) / num_rows
    squares = sum(float(np.square(values - mean).sum()) for values in _chunks(train))
    deviation = float(np.sqrt(squares / num_rows))
    if deviation <= abs(mean) * 1e-9:  # or 0 up to rounding
        raise DataError(
            f"the labels: all {len(train):,} training rows have the same number; nothing can be "
            "learned from them"
        )
    return LabelMap(mean=mean, deviation=deviation)


def _fit_two_classes(
    train: Tensor, parts: Mapping[str, Tensor], classes: Sequence[ClassLabel] | None
) -> LabelMap:
    found = distinct(train, 2)
    known: Sequence[ClassLabel] = classes or [_plain(value) for value in found]
    if len(found) > 2 or len(known) > 2:
        count = f"{max(len(found), len(known)):,}" if classes else "more"
        raise DataError(
            f'the labels: expected two classes for the loss "binary", got {count}; choose the loss '
            '"multiclass" for classes or "regression" for a number'
        )
    if len(found) < 2:
        raise DataError(
            f"the labels: expected two classes, got the same in all {len(train):,} training rows"
        )
    values = [0, 1] if are_codes(known) else known
    for part, labels in parts.items():
        unknown = sum(
            int((~np.isin(chunk, _as(labels, values))).sum()) for chunk in _chunks(labels)
        )
        if unknown:
            raise DataError(
                f"the labels of the {part} rows: expected the two classes of the training rows, "
                f"got others in {unknown:,} rows"
            )
    return LabelMap(classes=list(known))


def _fit_classes(train: Tensor, parts: Mapping[str, Tensor], names: Sequence[str]) -> LabelMap:
    bad, largest = 0, 0
    for labels in parts.values():
        for values in _chunks(labels):
            bad += int(((values != np.floor(values)) | (values < 0)).sum())
            largest = max(largest, int(values.max()))
    if bad:
        raise DataError(
            'the labels: expected codes from 0 for the loss "multiclass", got fractions or '
            f"negative numbers in {bad:,} rows; write the classes as text, or choose the loss "
            '"regression" for a number'
        )
    if largest >= MAX_CLASSES:
        raise DataError(
            f'the labels: expected codes below {MAX_CLASSES:,} for the loss "multiclass", got '
            'larger ones; write the classes as text, or choose the loss "regression" for a number'
        )
    if names and largest >= len(names):
        raise DataError(
            f"the labels: expected codes of {len(names):,} classes, got larger ones; prepare the "
            "store again"
        )
    if len(distinct(train, 1)) < 2:
        raise DataError(
            f"the labels: expected several classes, got the same in all {len(train):,} training "
            "rows"
        )
    return LabelMap(classes=list(names or range(largest + 1)))


def check_both_classes(
    label_map: LabelMap, loss: Loss, part: str, labels: Tensor, metric: str = ""
) -> None:
    """Raise DataError for held-out rows with one label only, where the metrics need several.

    `metric` is the contract's. Some metrics, such as an AUC, cannot be computed from such rows.
    """
    fits = metric in METRICS.get(loss.output or "regression", {})
    is_needed = loss.labels == "binary" or (fits and metric in UNDEFINED_FOR_SOME_LABELS)
    if not is_needed or labels.dim() != 1 or not len(labels):
        return
    if len(distinct(label_map.codes(labels), 1)) < 2:
        what = "both classes" if loss.labels == "binary" else f"several labels for {metric}"
        raise DataError(
            f"the labels of the {part} rows: expected {what}, got one in all {len(labels):,} rows "
            "that are evaluated; hold out more rows"
        )


def check_output(top: str, loss: Loss, label_map: LabelMap, output: Tensor, rows: int) -> None:
    """Raise ModelError unless a top's output has the shape that the loss takes.

    `top` is what errors call the top. A loss that takes labels as they are also takes any output.
    """
    if loss.labels is None:
        return
    expected = f"one value per row, [{rows}] or [{rows}, 1],"
    fits = output.numel() == rows == len(output)
    if loss.labels == "multiclass" and label_map.classes is not None:
        num_classes = len(label_map.classes)
        expected = f"one value for each class, [{rows}, {num_classes}],"
        fits = output.dim() == 2 and len(output) == rows and output.shape[1] >= num_classes
        if isinstance(label_map.classes[0], str):  # codes may leave classes without rows
            fits = fits and output.shape[1] == num_classes
    if not fits:
        raise ModelError(
            f'{top} must return {expected} for the loss "{loss.labels}", got {list(output.shape)}'
        )


def _chunks(labels: Tensor) -> Iterator[Values]:
    for start in range(0, len(labels), _CHUNK):
        yield labels[start : start + _CHUNK].detach().cpu().numpy().astype(np.float64)


def distinct(labels: Tensor, limit: int) -> list[float]:
    """The distinct labels in order; more than `limit` are not looked for further."""
    found: list[float] = []
    for values in _chunks(labels):
        others: npt.NDArray[Any] = np.unique(values[~np.isin(values, found)])
        found = sorted([*found, *others.tolist()])
        if len(found) > limit:
            break
    return found


def _as(labels: Tensor, classes: Sequence[ClassLabel]) -> list[float]:
    """Classes as labels of this type have them: 0.1 as written is another number in float32."""
    values = [float(value) for value in classes]
    return (
        torch.tensor(values, dtype=labels.dtype).tolist() if labels.is_floating_point() else values
    )


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) else value


def recode(labels: Tensor, classes: Sequence[ClassLabel], wanted: Sequence[ClassLabel]) -> Tensor:
    """Codes of one list of classes as codes of another; raises DataError for a class not in it."""
    code_of = {name: code for code, name in enumerate(wanted)}
    absent = [code for code, name in enumerate(classes) if name not in code_of]
    if absent:
        count = int(torch.isin(labels.cpu(), torch.tensor(absent)).sum())
        raise DataError(
            f"the labels: expected classes of the training rows in held-out rows, got {count:,} "
            "rows with others"
        )
    codes = torch.tensor([code_of[name] for name in classes], device=labels.device)
    return codes[labels]
