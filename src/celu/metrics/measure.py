"""The metrics of each kind of output, with row weights: the one definition of each.

A figure and its interval come from the same code: a figure has the weight 1 for every row, a
resample has random weights (`scores/bootstrap.py`). With weights of 1, the metrics equal
scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from celu.metrics.names import METRICS, Output
from celu.metrics.own import Metric
from celu.metrics.ranking import CHUNK_CELLS, Ranking, Values, Weights
from celu.metrics.values import Labels

THRESHOLD = 0.5  # of the binary accuracy
Terms = Callable[[int, int], npt.NDArray[np.float64]]


class Measure(Protocol):
    """The metrics of one model on some rows."""

    def measure(self, weights_NR: Weights) -> dict[str, Values]:
        """Each metric for R resamples; NaN where it is undefined."""
        ...


def compute(
    output: Output,
    scores: npt.NDArray[Any],
    labels: Labels,
    names: Collection[str] | None = None,
    own: Sequence[Metric] = (),
    weights: npt.NDArray[np.float64] | None = None,
) -> dict[str, float]:
    """The metrics of these rows by name: those of `names`, by default all of the output.

    `weights` [N] say how much each row counts; the user's own metrics know none. All are NaN if a
    score is NaN. Raises ModelError if one of the user's own fails.
    """
    chosen = METRICS[output] if names is None else names
    if np.isnan(scores).any():
        return dict.fromkeys([*chosen, *(metric.name for metric in own)], np.nan)
    with np.errstate(all="ignore"):  # scores may be infinite
        ones_N1 = np.ones((len(labels), 1), np.uint8)
        found = make_measure(output, scores, labels, chosen, own, weights).measure(ones_N1)
    return {name: float(value_R[0]) for name, value_R in found.items()}


def make_measure(
    output: Output,
    scores: npt.NDArray[Any],
    labels: Labels,
    names: Collection[str] | None = None,
    own: Sequence[Metric] = (),
    weights: npt.NDArray[np.float64] | None = None,
) -> Measure:
    """The metrics of `names`, by default all for this kind of output, and the user's own.

    `weights` [N] say how much each row counts; the user's own metrics know none.
    """
    names = METRICS[output] if names is None else names
    known: Measure
    if output == "binary":
        known = BinaryMeasure(scores, labels)
    elif output == "multiclass":
        known = MulticlassMeasure(scores, labels, with_auc="macro_auc" in names)
    else:
        known = RegressionMeasure(scores, labels)
    return _Chosen(known, names, OwnMeasure(own, scores, labels), weights)


class _Chosen:
    """Some metrics of a measure, of rows with weights of their own, and the user's own metrics."""

    def __init__(
        self,
        known: Measure,
        names: Collection[str],
        own: OwnMeasure,
        weights: npt.NDArray[np.float64] | None,
    ) -> None:
        self._known = known
        self._names = names
        self._own = own
        self._weights = weights

    def measure(self, weights_NR: Weights) -> dict[str, Values]:
        """See `Measure`."""
        weighted_NR = weights_NR if self._weights is None else weights_NR * self._weights[:, None]
        known = self._known.measure(weighted_NR) if self._names else {}
        return {name: known[name] for name in self._names} | self._own.measure(weights_NR)


class OwnMeasure:
    """The user's own metrics. They know no weights, so rows are repeated: weights are counts."""

    def __init__(self, metrics: Sequence[Metric], scores: npt.NDArray[Any], labels: Labels) -> None:
        self._metrics = metrics
        self._scores = scores
        self._labels = labels

    def measure(self, weights_NR: Weights) -> dict[str, Values]:
        """See `Measure`."""
        values: dict[str, list[float]] = {metric.name: [] for metric in self._metrics}
        for weights_N in weights_NR.T if self._metrics else ():
            rows = np.repeat(np.arange(len(weights_N)), weights_N)
            scores, labels = self._scores[rows], self._labels[rows]
            for metric in self._metrics:
                values[metric.name].append(metric(scores, labels))
        return {name: np.array(found) for name, found in values.items()}


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
    """Accuracy, log loss, and the means of the classes' AUC and F1, each class against the others.

    A class that does not occur among the labels (of a resample) has no AUC and is left out. One
    that is neither a label nor the largest score of any row has no F1.
    """

    def __init__(self, scores: npt.NDArray[Any], labels: Labels, *, with_auc: bool = True) -> None:
        self._scores = scores
        self._labels = labels.astype(np.int64)
        self._top = scores.argmax(axis=1)
        present = np.unique(self._labels) if with_auc else ()
        self._rankings = [Ranking(scores[:, k], self._labels == k) for k in present]

    def measure(self, weights_NR: Weights) -> dict[str, Values]:
        """See `Measure`."""
        loss_R, correct_R = weighted_means(weights_NR, self._terms)
        found = {"accuracy": correct_R, "log_loss": loss_R, "macro_f1": self._f1(weights_NR)}
        if self._rankings:
            aucs = [ranking.measure(weights_NR)["auc"] for ranking in self._rankings]
            found["macro_auc"] = _mean_of_defined(np.stack(aucs))
        return found

    def _f1(self, weights_NR: Weights) -> Values:
        """Twice the weight that is right in a class, by that of its labels and predictions."""
        right = np.where(self._top == self._labels, self._labels, self._scores.shape[1])
        right_KR, labelled_KR, top_KR = (
            self._by_class(codes, weights_NR) for codes in (right, self._labels, self._top)
        )
        with np.errstate(invalid="ignore"):
            return _mean_of_defined(2 * right_KR / (labelled_KR + top_KR))

    def _by_class(
        self, codes: npt.NDArray[np.int64], weights_NR: Weights
    ) -> npt.NDArray[np.float64]:
        """The weight of the rows with each code that is a class, [K, R]."""
        num_classes = self._scores.shape[1]
        counts = [np.bincount(codes, weights_N, num_classes) for weights_N in weights_NR.T]
        return np.stack(counts, axis=1)[:num_classes].astype(np.float64, copy=False)

    def _terms(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        scores, labels = self._scores[start:stop], self._labels[start:stop]
        loss = -np.log(clip(scores[np.arange(len(labels)), labels]))
        return np.stack([loss, (self._top[start:stop] == labels).astype(np.float64)])


def _mean_of_defined(values_CR: npt.NDArray[np.float64]) -> Values:
    """The mean over classes, without those that are undefined; NaN if all are."""
    num_defined_R = (~np.isnan(values_CR)).sum(axis=0)
    total_R = np.nansum(values_CR, axis=0)
    return np.where(num_defined_R > 0, total_R / np.maximum(num_defined_R, 1), np.nan)


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
