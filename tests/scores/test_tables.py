"""Calibration bins and curves equal scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from celu.metrics.ranking import Ranking
from celu.scores.tables import calibration_error, make_bins, precision_recall_curve, roc_curve
from scores.samples import binary, regression


def test_bins_are_scikit_learns_quantile_bins() -> None:
    scores, labels = binary(digits=7)
    bins = make_bins(scores, labels, are_shares=True)
    rates, means = calibration_curve(labels, scores, n_bins=10, strategy="quantile")
    assert [b.rows for b in bins] == [200] * 10
    assert [b.mean_score for b in bins] == pytest.approx(means, rel=1e-6)
    assert [b.mean_label for b in bins] == pytest.approx(rates, rel=1e-12)
    assert all(0 <= b.low <= b.mean_label <= b.high <= 1 for b in bins)


def test_rows_with_equal_scores_are_in_one_bin() -> None:
    scores = np.array([0.1] * 60 + [0.2] * 5 + [0.9] * 35, np.float32)
    bins = make_bins(scores, np.arange(100) % 2, are_shares=True)
    assert [b.rows for b in bins] == [60, 5, 35]
    assert [b.mean_score for b in bins] == pytest.approx([0.1, 0.2, 0.9])


def test_the_calibration_error_is_the_mean_gap_by_rows() -> None:
    scores = np.array([0.1] * 60 + [0.9] * 40)
    labels = np.array([1.0] * 12 + [0.0] * 48 + [1.0] * 20 + [0.0] * 20)
    bins = make_bins(scores, labels, are_shares=True)
    assert calibration_error(bins) == pytest.approx(0.6 * 0.1 + 0.4 * 0.4)
    assert bins[0].mean_label == 0.2 and bins[0].low == pytest.approx(0.118, abs=0.001)  # Wilson's


def test_deciles_of_values_have_the_interval_of_a_mean() -> None:
    scores, labels = regression()
    bins = make_bins(scores, labels, are_shares=False)
    assert [b.rows for b in bins] == [150] * 10
    assert [b.mean_label for b in bins] == sorted(b.mean_label for b in bins)
    lowest = labels[np.argsort(scores)[:150]]
    error = lowest.std(ddof=1) / np.sqrt(150)
    assert bins[0].high - bins[0].mean_label == pytest.approx(1.96 * error, rel=1e-4)


@pytest.mark.parametrize("digits", [1, 7])
def test_curves_pass_through_scikit_learns_points(digits: int) -> None:
    scores, labels = binary(digits=digits)
    ranking = Ranking(scores, labels > 0)
    roc, curve = roc_curve(ranking), precision_recall_curve(ranking)
    false, true, _ = sk.roc_curve(labels, scores, drop_intermediate=False)
    area = sk.auc(roc.x, roc.y)
    assert area == pytest.approx(sk.roc_auc_score(labels, scores), abs=0.003)
    for x, y in zip(roc.x, roc.y, strict=True):
        assert true[false <= x].max() - 1e-9 <= y <= true[false >= x].min() + 1e-9 or x in false
    precision, recall, _ = sk.precision_recall_curve(labels, scores)
    for x, y in zip(curve.x, curve.y, strict=True):
        first = np.flatnonzero(recall >= x - 1e-9)[-1]  # thresholds ascend
        assert y == pytest.approx(precision[first])
    assert roc.x[0] == 0 and roc.x[-1] == roc.y[-1] == curve.x[-1] == 1
