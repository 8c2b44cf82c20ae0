"""The metrics equal scikit-learn's, with and without weights, over any number of chunks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from celu.metrics import measure, ranking
from celu.metrics.measure import compute, make_measure
from celu.metrics.names import HIGHER_IS_BETTER, METRICS, TITLES, UNSCALED
from celu.metrics.own import Metric
from scores.samples import Array, binary, multiclass, regression


@pytest.fixture(params=[1 << 16, 50], ids=["one chunk", "many chunks"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ranking, measure):
        monkeypatch.setattr(module, "CHUNK_CELLS", request.param)


def ones(labels: Array) -> Array:
    return np.ones((len(labels), 1), np.uint8)


def fractions(labels: Array) -> Array:
    """As a user may give them; some rows do not count."""
    drawn = np.random.default_rng(6).uniform(-0.1, 0.4, (len(labels), 1))
    return np.maximum(drawn, 0.0)


def random_weights(labels: Array) -> Array:
    return np.random.default_rng(5).poisson(1, (len(labels), 3)).astype(np.uint8)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("digits", [1, 2, 7])
def test_binary_metrics_equal_scikit_learns(digits: int) -> None:
    scores, labels = binary(digits=digits)
    for weights in (ones(labels), random_weights(labels), fractions(labels)):
        found = make_measure("binary", scores, labels).measure(weights)
        assert list(found) == list(METRICS["binary"])
        for column, weight in enumerate(weights.T):
            expected = {
                "auc": sk.roc_auc_score(labels, scores, sample_weight=weight),
                "pr_auc": sk.average_precision_score(labels, scores, sample_weight=weight),
                "log_loss": sk.log_loss(labels, scores, sample_weight=weight),
                "accuracy": sk.accuracy_score(labels, scores >= 0.5, sample_weight=weight),
                "brier": sk.brier_score_loss(labels, scores, sample_weight=weight),
            }
            for name, value in expected.items():
                assert found[name][column] == pytest.approx(value, rel=1e-6), name
            false, true, _ = sk.roc_curve(labels, scores, sample_weight=weight)
            assert found["ks"][column] == pytest.approx(np.abs(true - false).max(), rel=1e-12)


def test_rows_of_one_class_that_counts_have_no_auc() -> None:
    scores, labels = binary(400)
    weights = np.where(labels > 0.5, fractions(labels)[:, 0], 0.0)
    found = compute("binary", scores, labels, weights=weights)
    assert math.isnan(found["auc"]) and math.isfinite(found["log_loss"])


def test_a_users_own_metric_knows_no_weights() -> None:
    scores, labels = binary(400)
    mean = Metric(lambda scores, labels: scores.mean(), higher_is_better=True, name="mean")
    found = compute("binary", scores, labels, ["auc"], [mean], fractions(labels)[:, 0])
    assert found["mean"] == pytest.approx(scores.mean())


@pytest.mark.usefixtures("chunks")
def test_weighted_metrics_are_those_of_repeated_rows() -> None:
    scores, labels = binary(400)
    weights = random_weights(labels)
    weighted = make_measure("binary", scores, labels).measure(weights)
    for column, weight in enumerate(weights.T):
        rows = np.repeat(np.arange(len(labels)), weight)
        repeated = make_measure("binary", scores[rows], labels[rows]).measure(ones(rows))
        for name, value in repeated.items():
            assert weighted[name][column] == pytest.approx(value[0], rel=1e-12), name


@pytest.mark.usefixtures("chunks")
def test_multiclass_metrics_equal_scikit_learns() -> None:
    scores, labels = multiclass()
    normal = scores / scores.sum(axis=1, keepdims=True, dtype=np.float64)
    top = scores.argmax(axis=1)
    for weights in (ones(labels), random_weights(labels), fractions(labels)):
        found = make_measure("multiclass", scores, labels).measure(weights)
        assert list(found) == list(METRICS["multiclass"])
        for column, weight in enumerate(weights.T):
            expected = {
                "accuracy": sk.accuracy_score(labels, top, sample_weight=weight),
                "log_loss": sk.log_loss(labels, normal, sample_weight=weight),
                "macro_auc": sk.roc_auc_score(
                    labels, normal, multi_class="ovr", average="macro", sample_weight=weight
                ),
                "macro_f1": sk.f1_score(labels, top, average="macro", sample_weight=weight),
            }
            for name, value in expected.items():
                assert found[name][column] == pytest.approx(value, rel=1e-6), name


def test_macro_f1_leaves_out_classes_without_labels_and_predictions_as_scikit_learn() -> None:
    labels = np.array([0.0, 0, 2, 2, 2])
    scores = np.eye(5)[[0, 3, 2, 2, 0]]  # class 1 and 4: neither; class 3: a prediction only
    found = compute("multiclass", scores, labels, ["macro_f1"])
    expected = sk.f1_score(labels, scores.argmax(axis=1), average="macro", zero_division=0)
    assert found == {"macro_f1": pytest.approx(expected)}


@pytest.mark.usefixtures("chunks")
def test_regression_metrics_equal_scikit_learns_for_labels_far_from_zero() -> None:
    scores, labels = regression()
    for weights in (ones(labels), random_weights(labels), fractions(labels)):
        found = make_measure("regression", scores, labels).measure(weights)
        for column, weight in enumerate(weights.T):
            expected = {
                "rmse": sk.root_mean_squared_error(labels, scores, sample_weight=weight),
                "mae": sk.mean_absolute_error(labels, scores, sample_weight=weight),
                "r2": sk.r2_score(labels, scores, sample_weight=weight),
            }
            assert list(found) == list(METRICS["regression"])
            for name, value in expected.items():
                assert found[name][column] == pytest.approx(value, rel=1e-9), name


def test_a_certain_and_wrong_score_has_a_finite_log_loss_as_in_scikit_learn() -> None:
    scores, labels = np.array([0, 1, 0.5], np.float32), np.array([1.0, 0, 1])
    found = make_measure("binary", scores, labels).measure(ones(labels))["log_loss"][0]
    assert found == pytest.approx(sk.log_loss(labels, scores), rel=1e-6)


def test_a_resample_without_a_class_is_undefined_and_does_not_affect_the_others() -> None:
    scores, labels = np.array([0.9, 0.1, 0.2], np.float32), np.array([1.0, 0, 0])
    weights = np.array([[0, 1, 0], [1, 1, 0], [2, 0, 0]], np.uint8)
    found = make_measure("binary", scores, labels).measure(weights)
    for name in ("auc", "pr_auc", "ks"):
        assert np.isnan(found[name]).tolist() == [True, False, True]
        assert found[name][1] == 1
    assert np.isnan(found["log_loss"]).tolist() == [False, False, True]


def test_a_tie_may_be_larger_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "CHUNK_CELLS", 4)
    scores = np.array([0.5] * 30 + [0.7, 0.2], np.float32)
    labels = np.array([1.0, 0, 0] * 10 + [1, 0])
    found = make_measure("binary", scores, labels).measure(ones(labels))
    assert found["auc"][0] == pytest.approx(sk.roc_auc_score(labels, scores), rel=1e-12)
    expected = sk.average_precision_score(labels, scores)
    assert found["pr_auc"][0] == pytest.approx(expected, rel=1e-12)


def test_every_metric_has_a_title() -> None:
    assert set(TITLES) == set(HIGHER_IS_BETTER)
    assert set(HIGHER_IS_BETTER) - {"loss"} == {name for of in METRICS.values() for name in of}


def test_the_reference_names_every_metric_and_its_direction() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    section = page[page.index("## Metrics") :].split("\n## ")[0]
    for name, is_higher in HIGHER_IS_BETTER.items():
        assert f"`{name}`" in section, name
        assert (f"*`{name}`*" not in section) == is_higher, name


def test_a_metric_of_two_outputs_has_one_direction() -> None:
    for names in METRICS.values():
        assert all(HIGHER_IS_BETTER[name] == is_higher for name, is_higher in names.items())


def test_what_fits_an_unscaled_output_does_not_change_with_its_scale() -> None:
    scores, labels = binary()
    for scaled in (np.log(scores + 1e-9), 100 * scores - 7):
        found = compute("binary", scaled, labels, UNSCALED["binary"])
        assert found == pytest.approx(compute("binary", scores, labels, UNSCALED["binary"]))
    probabilities, classes = multiclass()
    expected = compute("multiclass", probabilities, classes, UNSCALED["multiclass"])
    found = compute("multiclass", np.log(probabilities), classes, UNSCALED["multiclass"])
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("make", [binary, multiclass, regression])
def test_a_nan_score_makes_every_metric_nan(make: Any) -> None:
    scores, labels = make(50)
    own = Metric(lambda scores, labels: 1.0, higher_is_better=True, name="own")
    finite = compute(make.__name__, scores, labels, None, [own])
    assert finite["own"] == 1.0 and all(math.isfinite(value) for value in finite.values())
    scores[3] = np.nan
    found = compute(make.__name__, scores, labels, None, [own])
    assert list(found) == list(finite) and all(math.isnan(value) for value in found.values())


def test_infinite_scores_still_have_an_order() -> None:
    scores, labels = np.array([-np.inf, 0, 1, np.inf]), np.array([0.0, 0, 1, 1])
    assert compute("binary", scores, labels, ["auc"]) == {"auc": 1.0}
