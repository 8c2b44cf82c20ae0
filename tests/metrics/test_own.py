"""A user's own metric: its name, its direction, and what happens when it fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import celu
from celu.errors import ConfigError, ModelError
from celu.metrics.measure import make_measure
from celu.metrics.own import as_metrics
from celu.models.building import find_metrics
from scores.samples import binary


@celu.metric(higher_is_better=True)
def lift(scores: Any, labels: Any) -> float:
    best = np.argsort(-scores, kind="stable")[: len(scores) // 10]
    return float(labels[best].mean() / labels.mean())


def test_a_declared_function_has_its_name_and_its_direction() -> None:
    assert (lift.name, lift.higher_is_better) == ("lift", True)
    assert lift(np.arange(10.0), np.eye(10)[9]) == 10


def test_the_function_gets_float64_and_cannot_change_the_scores() -> None:
    seen = {}

    @celu.metric(higher_is_better=False)
    def own(scores: Any, labels: Any) -> float:
        seen["types"] = scores.dtype, labels.dtype
        scores[:] = 0
        return 1.0

    scores = np.ones(3, np.float32)
    assert own(scores, np.ones(3, np.int64)) == 1
    assert seen["types"] == (np.float64, np.float64) and scores.all()


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda scores, labels: 1 / 0, "ZeroDivisionError"),
        (lambda scores, labels: "high", "ValueError"),
        (lambda scores, labels: None, "TypeError"),
        (lambda scores: 1.0, "TypeError"),
    ],
)
def test_a_failing_metric_is_named_with_the_shapes_it_got(function: Any, error: str) -> None:
    own = celu.Metric(function, higher_is_better=True, name="gain")
    message = rf"'gain' failed for scores \[4\] and labels \[4\], {error}: .* return a number"
    with pytest.raises(ModelError, match=message):
        own(np.zeros(4), np.zeros(4))


@pytest.mark.parametrize("name", ["auc", "loss", "top 10", "", "x" * 65])
def test_a_name_that_is_taken_or_no_identifier_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="metric: expected a name"):
        celu.Metric(lambda scores, labels: 1.0, True, name)


def test_a_function_without_a_direction_is_refused_with_what_to_write() -> None:
    def gain(scores: Any, labels: Any) -> float:
        return 1.0

    with pytest.raises(ConfigError, match=r"got the function gain; declare .* @celu\.metric"):
        as_metrics([gain])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"metrics: expected one of loss, auc, .* got 'f1'"):
        as_metrics("f1")
    with pytest.raises(ConfigError, match="expected each name once, got auc again"):
        as_metrics(["auc", "auc"])


def test_a_resample_repeats_rows_for_a_metric_without_weights() -> None:
    scores, labels = binary(300)
    weights = np.random.default_rng(1).poisson(1, (300, 2)).astype(np.uint8)
    own = celu.Metric(lambda scores, labels: float((scores * labels).sum()), True, "sum")
    found = make_measure("binary", scores, labels, ["auc"], [own]).measure(weights)
    assert list(found) == ["auc", "sum"]
    assert found["sum"] == pytest.approx((scores * labels) @ weights)


def test_a_setting_names_built_in_metrics_and_those_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_metrics_of_a_test.py").write_text(
        "import celu\n"
        "@celu.metric(higher_is_better=False)\n"
        "def cost(scores, labels):\n    return float(abs(scores - labels).sum())\n"
        "def undeclared(scores, labels):\n    return 1.0\n"
    )
    found = find_metrics(["ks", "own_metrics_of_a_test:cost"], "model.metrics", tmp_path)
    assert found[0] == "ks"
    assert isinstance(found[1], celu.Metric) and not found[1].higher_is_better
    for use, message in {
        "own_metrics_of_a_test:undeclared": r"expected a metric, got function; .* @celu\.metric",
        "own_metrics_of_a_test:missing": "cannot import",
        "no_such_module:lift": rf"it was looked for in {tmp_path} and where Python finds its",
        "f1": "expected one of accuracy, auc",
    }.items():
        with pytest.raises(ConfigError, match=f"model.metrics: .*{message}"):
            find_metrics([use], "model.metrics", tmp_path)
