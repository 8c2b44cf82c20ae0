"""Rows to evaluate that are passed as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from celu.config.schema import ClassLabel
from celu.errors import ConfigError, DataError
from celu.metrics.names import Output
from celu.metrics.values import Labels, check_labels, check_scores, check_weights
from celu.scores.classes import are_text, number_codes, text_codes
from celu.scores.result import RowCounts
from celu.scores.rows import Rows, SliceColumn


def rows_from_arrays(
    output: Output | None,
    scores: Any,
    labels: Any,
    *,
    by: Mapping[str, Any],
    against: Any,
    fallback: Any,
    classes: Sequence[ClassLabel] | None = None,
    weights: Any = None,
) -> Rows:
    """Check arrays with one value, or K probabilities, for each row; raises DataError.

    `classes` are those of labels that are text, or two numbers other than 0 and 1.
    """
    if output not in ("binary", "multiclass", "regression"):
        raise ConfigError(
            f"output: expected 'binary', 'multiclass' or 'regression' for arrays, got {output!r}"
        )
    values = _label_values(labels, classes)
    num_rows = len(values) if values.ndim == 1 else -1
    scored = _scores("scores", output, scores, num_rows)
    num_classes = scored.shape[1] if scored.ndim > 1 else None
    check_labels("labels", output, values, num_classes)
    other = None
    if against is not None:
        other = _scores("against", output, against, num_rows)
        if other.shape != scored.shape:
            raise DataError(f"against: expected shape {scored.shape}, got {other.shape}")
    columns = {}
    for name, column in by.items():
        texts, codes = np.unique(np.asarray(column).astype(str), return_inverse=True)
        columns[name] = SliceColumn(codes, texts.tolist())
        _check_rows(f"by[{name!r}]", codes, num_rows)
    flags = None if fallback is None else _numbers("fallback", fallback).astype(np.bool_)
    if flags is not None:
        _check_rows("fallback", flags, num_rows)
    other_name = None if other is None else "against"
    counts = None
    if weights is not None:
        counts = _numbers("weights", weights).astype(np.float64)
        _check_rows("weights", counts, num_rows)
        check_weights("weights", counts)
    return Rows(
        output,
        scored,
        values,
        RowCounts(num_rows),
        "model",
        other,
        other_name,
        flags,
        columns,
        counts,
    )


def _label_values(labels: Any, classes: Sequence[ClassLabel] | None) -> Labels:
    array = np.asarray(labels) if type(labels).__module__.startswith(("numpy", "pandas")) else None
    if array is None or array.dtype.kind not in "OSUT":
        return number_codes("labels", _numbers("labels", labels).astype(np.float64), classes)
    if classes is None or not are_text(classes):
        raise ConfigError(
            "classes: expected those of text labels, in the order of the model's probabilities "
            "(such as the classes of celu.predict's result), got none"
        )
    return text_codes("labels", array.reshape(-1), classes)


def _scores(name: str, output: Output, scores: Any, num_rows: int) -> npt.NDArray[Any]:
    array = _numbers(name, scores)
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    expected = 2 if output == "multiclass" else 1
    if array.ndim != expected or len(array) != num_rows or not num_rows or array.shape[-1] < 1:
        shape = "[N, K] with labels [N]" if expected == 2 else "[N] with labels [N]"
        raise DataError(f"{name}: expected shape {shape}, N > 0, got {array.shape}")
    check_scores(name, output, array)
    return array


def _numbers(name: str, values: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on a GPU, or with a gradient
        raise DataError(
            f"{name}: expected an array of numbers, got a {type(values).__name__} that NumPy "
            f"cannot read ({error}); pass tensors as tensor.detach().cpu()"
        ) from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name}: expected an array of numbers, got {array.dtype}")
    return array


def _check_rows(name: str, array: npt.NDArray[Any], num_rows: int) -> None:
    if array.shape != (num_rows,):
        raise DataError(f"{name}: expected {num_rows} values, got shape {array.shape}")
