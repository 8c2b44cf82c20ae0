"""The values that scores and labels may have, by the kind of a model's output."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from celu.errors import DataError
from celu.metrics.names import Output

Labels = npt.NDArray[np.float64]

MAX_SUM_ERROR = 1e-3  # of the probabilities of a row, which are float32
_CHECKED_ROWS = 1 << 16


def check_scores(where: str, output: Output, scores: npt.NDArray[Any]) -> None:
    """Raise DataError for NaN and infinities, and for what is no probability."""
    problems = {"NaN or Inf": 0, "below 0 or above 1": 0, "probabilities that do not sum to 1": 0}
    for start in range(0, len(scores), _CHECKED_ROWS):
        part = scores[start : start + _CHECKED_ROWS]
        is_finite = np.isfinite(part)
        problems["NaN or Inf"] += _rows(~is_finite)
        if output != "regression":
            problems["below 0 or above 1"] += _rows(is_finite & ((part < 0) | (part > 1)))
        if output == "multiclass":
            off = np.abs(part.sum(axis=1, dtype=np.float64) - 1) > MAX_SUM_ERROR
            problems["probabilities that do not sum to 1"] += int(off.sum())
    expected = "finite values" if output == "regression" else "probabilities"
    for problem, count in problems.items():
        if count:
            raise DataError(
                f"{where}: expected {expected}, got {problem} in {count:,} rows; "
                "score the rows again"
            )


def _rows(bad: npt.NDArray[np.bool_]) -> int:
    return int((bad if bad.ndim == 1 else bad.any(axis=1)).sum())


def check_labels(where: str, output: Output, labels: Labels, num_classes: int | None) -> None:
    """Raise DataError for labels that the output cannot have."""
    if output == "regression":
        expected, is_bad = "finite numbers", ~np.isfinite(labels)
    elif num_classes is None:
        expected, is_bad = "0 or 1", ~((labels == 0) | (labels == 1))
    else:
        expected = f"classes from 0 to {num_classes - 1}"
        is_bad = ~((labels >= 0) & (labels < num_classes) & (labels == np.floor(labels)))
    if is_bad.any():
        raise DataError(
            f"{where}: expected {expected} for the output {output!r}, got other values in "
            f"{int(is_bad.sum()):,} rows; choose another label column"
        )


def check_weights(where: str, weights: npt.NDArray[np.float64]) -> None:
    """Raise DataError for weights of rows that are missing, not finite or negative."""
    bad = int((~(np.isfinite(weights) & (weights >= 0))).sum())
    if bad:
        raise DataError(
            f"{where}: expected weights of 0 or more in every row, got {bad:,} rows with others or "
            "none; correct them"
        )
