"""AUC, rates and own figures, by hand on a few rows."""

from __future__ import annotations

import numpy as np
import pytest

from celu.audit.leak import auc_of, measure, tpr_of


def test_the_auc_of_three_rows_by_hand() -> None:
    scores, is_positive = np.array([3.0, 2.0, 1.0]), np.array([True, False, True])
    assert auc_of(scores, is_positive) == 0.5  # of two pairs, one is in order


def test_the_rate_counts_positives_above_one_percent_of_the_negatives() -> None:
    negatives, positives = np.arange(100.0), np.array([99.5, 98.5, 97.5, 3.0])
    scores = np.concatenate([negatives, positives])
    is_positive = np.arange(104) >= 100
    assert tpr_of(scores, is_positive) == 0.25  # of 100 negatives none may pass


def test_a_rate_is_not_measured_among_few_negatives() -> None:
    is_positive = np.arange(100) >= 60
    assert tpr_of(is_positive.astype(float), is_positive) == 1
    assert np.isnan(tpr_of(is_positive[20:].astype(float), is_positive[20:]))


def test_random_scores_have_a_rate_of_one_percent_also_within_bins() -> None:
    random = np.random.default_rng(1)
    forecast = random.random((40_000, 1))
    is_positive = random.random((40_000, 1)) < forecast
    leak = measure(random.random((40_000, 1)), is_positive, forecast)
    assert leak.tpr == pytest.approx(0.01, abs=0.004)
    assert leak.own_tpr == pytest.approx(0.01, abs=0.004)


def test_an_attack_that_repeats_the_forecast_learns_nothing_of_its_own() -> None:
    random = np.random.default_rng(1)
    forecast = random.normal(size=20_000)
    is_positive = random.random(20_000) < 1 / (1 + np.exp(-2 * forecast))
    scores = np.floor(forecast * 4)[:, None] + random.random((20_000, 1))
    leak = measure(scores, is_positive[:, None], forecast[:, None])
    assert leak.auc is not None and leak.own_auc is not None
    assert leak.auc > 0.8
    assert leak.own_auc == pytest.approx(0.5, abs=0.08)


def test_an_attack_that_knows_the_labels_has_all_of_them_in_every_bin() -> None:
    random = np.random.default_rng(1)
    is_positive = random.random((1000, 1)) < 0.3
    leak = measure(is_positive.astype(float), is_positive, random.random((1000, 1)))
    assert (leak.auc, leak.tpr, leak.own_auc, leak.own_tpr) == (1, 1, 1, 1)


def test_rows_of_one_class_have_no_figure() -> None:
    leak = measure(np.ones((5, 1)), np.ones((5, 1), np.bool_), None)
    assert leak.auc is None and leak.tpr is None


def test_several_classes_are_averaged() -> None:
    is_class = np.eye(3, dtype=np.bool_)[[0, 1, 2, 0, 1, 2]]
    scores = is_class.astype(float)
    scores[:, 2] = 0  # nothing is known of the third class
    assert measure(scores, is_class, None).auc == pytest.approx((1 + 1 + 0.5) / 3, abs=1e-4)
