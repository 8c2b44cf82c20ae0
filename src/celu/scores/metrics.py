"""The metrics of each kind of output, with row weights.

A figure and its interval come from the same code: a figure has the weight 1 for every row, a
resample has random weights (`bootstrap`). With weights of 1, the metrics equal scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from celu.scores.ranking import CHUNK_CELLS, Ranking, Values, Weights
from celu.scores.values import Labels, Output

THRESHOLD = 0.5  # of the binary accuracy
# The metrics of each output, the main one first, and whether higher is better.
METRICS: dict[Output, dict[str, bool]] = {
    "binary": {
        "auc": True,
        "pr_auc": True,
        "log_loss": False,
        "ks": True,
        "accuracy": True,
        "brier": False,
    },
    "multiclass": {"accuracy": True, "log_loss": False, "macro_auc": True},
    "regression": {"rmse": False, "mae": False, "r2": True},
}
# Their names for readers.
TITLES = {
    "auc": "AUC",
    "pr_auc": "PR-AUC",
    "log_loss": "log loss",
    "ks": "KS",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "macro_auc": "macro AUC",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
}
Terms = Callable[[int, int], npt.NDArray[np.float64]]


class Measure(Protocol):
    """The metrics of one model on some rows."""

    def measure(self, weights_NR: Weights) -> dict[str, Values]:
        """Each metric of `METRICS` for R resamples; NaN where it is undefined."""
        ...


def make_measure(output: Output, scores: npt.NDArray[Any], labels: Labels) -> Measure:
    """The metrics for this kind of output."""
    if output == "binary":
        return BinaryMeasure(scores, labels)
    if output == "multiclass":
        return MulticlassMeasure(scores, labels)
    return RegressionMeasure(scores, labels)


class BinaryMeasure:
    """AUC, average precision, log loss, KS, accuracy at 0.5 and the Brier score."""

    def __init__(self, scores: npt.NDArray[Any], labels: Labels) -> None:
        self._scores = scores
        self._is_positive = labels > 0.5
        self.ranking = Ranking(scores, self._is_positive)

    def measure(self, weights_NR: Weights) -> dict[str, Values]:
        """See `Measure`."""
        loss_R, correct_R, squared_R = weighted_means(weights_NR, self._terms)
        ranked = self.ranking.measure(weights_NR)
        values = {**ranked, "log_loss": loss_R, "accuracy": correct_R, "brier": squared_R}
        return {name: values[name] for name in METRICS["binary"]}

    def _terms(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        scores, labels = self._scores[start:stop], self._is_positive[start:stop]
        clipped = clip(scores)
        loss = -np.log(np.where(labels, clipped, 1 - clipped))
        squared = (scores.astype(np.float64) - labels) ** 2
        return np.stack([loss, (scores >= THRESHOLD) == labels, squared])


class MulticlassMeasure:
    """Accuracy, log loss, and the mean of the classes' AUC, each against all other classes.

    A class that does not occur among the labels (of a resample) has no AUC and is left out.
    """

    def __init__(self, scores: npt.NDArray[Any], labels: Labels) -> None:
        self._scores = scores
        self._labels = labels.astype(np.int64)
        present = np.unique(self._labels)
        self._rankings = [Ranking(scores[:, k], self._labels == k) for k in present]

    def measure(self, weights_NR: Weights) -> dict[str, Values]:
        """See `Measure`."""
        loss_R, correct_R = weighted_means(weights_NR, self._terms)
        auc_CR = np.stack([ranking.measure(weights_NR)["auc"] for ranking in self._rankings])
        num_defined_R = (~np.isnan(auc_CR)).sum(axis=0)
        total_R = np.nansum(auc_CR, axis=0)
        mean_R = np.where(num_defined_R > 0, total_R / np.maximum(num_defined_R, 1), np.nan)
        return {"accuracy": correct_R, "log_loss": loss_R, "macro_auc": mean_R}

    def _terms(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        scores, labels = self._scores[start:stop], self._labels[start:stop]
        loss = -np.log(clip(scores[np.arange(len(labels)), labels]))
        return np.stack([loss, (scores.argmax(axis=1) == labels).astype(np.float64)])


class RegressionMeasure:
    """Root mean squared error, mean absolute error, and R²."""

    def __init__(self, scores: npt.NDArray[Any], labels: Labels) -> None:
        self._scores = scores
        self._labels = labels
        self._centre = labels.mean()  # squares of large labels would lose the digits that differ

    def measure(self, weights_NR: Weights) -> dict[str, Values]:
        """See `Measure`."""
        squared_R, absolute_R, mean_R, square_R = weighted_means(weights_NR, self._terms)
        variance_R = square_R - mean_R**2
        with np.errstate(invalid="ignore", divide="ignore"):
            r2_R = np.where(variance_R > 0, 1 - squared_R / variance_R, np.nan)
        return {"rmse": np.sqrt(squared_R), "mae": absolute_R, "r2": r2_R}

    def _terms(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        labels = self._labels[start:stop]
        error = self._scores[start:stop].astype(np.float64) - labels
        centred = labels - self._centre
        return np.stack([error**2, np.abs(error), centred, centred**2])


def clip(probabilities: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Probabilities away from 0 and 1 by their type's epsilon, so that a logarithm is finite."""
    epsilon = float(np.finfo(probabilities.dtype).eps)
    return np.clip(probabilities.astype(np.float64), epsilon, 1 - epsilon)


def weighted_means(weights_NR: Weights, terms: Terms) -> npt.NDArray[np.float64]:
    """The weighted mean of each term in each resample, [terms, R]; NaN without any weight.

    `terms(start, stop)` returns the terms of these rows, [terms, rows].
    """
    num_rows, num_resamples = weights_NR.shape
    size = max(1, CHUNK_CELLS // num_resamples)
    total_R = np.zeros(num_resamples)
    sums: Any = 0.0
    for start in range(0, num_rows, size):
        weights_BR = weights_NR[start : start + size].astype(np.float64)
        total_R += weights_BR.sum(axis=0)
        sums = sums + terms(start, min(start + size, num_rows)) @ weights_BR
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums / total_R)
