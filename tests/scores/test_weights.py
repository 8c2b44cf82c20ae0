"""Rows that count by weights of their own: a weight of 2 is the row twice, one of 0 none."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score
from typer.testing import CliRunner

import celu
from celu.cli.app import app
from celu.errors import ConfigError, DataError
from celu.scores.result import ScoreEvaluation
from scores.samples import binary, ids, multiclass, regression, write_labels, write_scores

CASES: dict[str, Any] = {
    "binary": binary(400),
    "multiclass": multiclass(400),
    "regression": regression(400),
}


def figures(found: ScoreEvaluation) -> dict[str, float]:
    values = dict(found.metrics)
    values["calibration"] = found.details.calibration_error or 0.0
    for name in ("roc", "precision_recall"):
        curve = asdict(found.details)[name]
        values |= {} if curve is None else {f"{name} {x}": y for x, y in enumerate(curve["y"])}
    return values


@pytest.mark.parametrize("output", CASES)
def test_whole_weights_are_repeated_rows(output: Any) -> None:
    scores, labels = CASES[output]
    weights = np.random.default_rng(1).integers(0, 4, len(labels))
    twice = np.repeat(np.arange(len(labels)), weights)
    found = celu.evaluate(scores, labels, output=output, weights=weights, resamples=0)
    expected = celu.evaluate(scores[twice], labels[twice], output=output, resamples=0)
    assert found.weighted and not expected.weighted
    ours, theirs = figures(found), figures(expected)
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"calibration"}:
        assert ours[name] == pytest.approx(theirs[name], abs=1e-9), name


def test_weights_count_as_in_scikit_learn(tmp_path: Path) -> None:
    scores, labels = binary(500)
    weights = np.random.default_rng(2).random(500)
    order = np.random.default_rng(3).permutation(500)
    file = write_scores(tmp_path / "s.parquet", scores[order], rows=[ids(500)[n] for n in order])
    path = write_labels(tmp_path / "y.parquet", labels, worth=weights)
    found = celu.evaluate(file, path, weight_column="worth")
    metrics = found.overall.metrics
    assert metrics["auc"].value == pytest.approx(
        roc_auc_score(labels, scores, sample_weight=weights)
    )
    clipped = np.clip(scores, 1e-15, 1 - 1e-15)
    assert metrics["log_loss"].value == pytest.approx(
        log_loss(labels, clipped, sample_weight=weights), rel=1e-6
    )
    low, high = metrics["auc"].low, metrics["auc"].high
    assert low is not None and high is not None and low < metrics["auc"].value < high
    plain = celu.evaluate(file, path, resamples=0)
    assert plain.metrics["auc"] != pytest.approx(metrics["auc"].value, abs=1e-6)
    bins = found.details.bins
    assert sum(one.weight for one in bins) == pytest.approx(weights.sum())
    assert sum(one.rows for one in bins) == 500
    mean = sum(one.weight * one.mean_label for one in bins) / weights.sum()
    assert mean == pytest.approx(np.average(labels, weights=weights))


def test_the_command_weights_rows_and_says_so(tmp_path: Path) -> None:
    scores, labels = binary(300)
    file = write_scores(tmp_path / "s.parquet", scores)
    rows = [
        f"{id_};{label:g};{n % 3}"
        for n, (id_, label) in enumerate(zip(ids(300), labels, strict=True))
    ]
    (tmp_path / "y.csv").write_text("\n".join(["person;left;worth", *rows]) + "\n")
    options = ["--labels", "y.csv", "--id", "person", "--label", "left", "--resamples", "0"]
    options[1] = str(tmp_path / "y.csv")  # separated by semicolons, which is noticed
    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        app, ["evaluate", str(file), *options, "--weight", "worth", "--out", str(page)]
    )
    assert done.exit_code == 0, done.output
    assert "300 rows evaluated, by their weights" in done.output
    expected = roc_auc_score(labels, scores, sample_weight=np.arange(300) % 3)
    assert f"{expected:.4f}" in done.output
    assert '"weighted":true' in page.read_text().replace(" ", "")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.full(300, -1.0), r"column 'worth': expected weights of 0 or more .* got 300 rows"),
        (np.r_[np.nan, np.ones(299)], "got 1 rows with others or none"),
        (np.zeros(300), "expected weights above 0 in the evaluated rows, got 0 in all"),
        (binary(300)[1], "expected labels of both classes, got one class only"),
    ],
)
def test_weights_that_are_none_are_refused(tmp_path: Path, weights: Any, message: str) -> None:
    scores, labels = binary(300)
    file = write_scores(tmp_path / "s.parquet", scores)
    path = write_labels(tmp_path / "y.parquet", labels, worth=weights)
    with pytest.raises(DataError, match=message):
        celu.evaluate(file, path, weight_column="worth")


def test_weights_need_a_place(tmp_path: Path) -> None:
    scores, labels = binary(300)
    file = write_scores(tmp_path / "s.parquet", scores)
    path = write_labels(tmp_path / "y.parquet", labels, worth=np.ones(300))
    with pytest.raises(ConfigError, match="--weight: expected a column other than the id"):
        celu.evaluate(file, path, weight_column="label")
    with pytest.raises(ConfigError, match="--by: expected columns other than the weight"):
        celu.evaluate(file, path, weight_column="worth", by=["worth"])
    with pytest.raises(ConfigError, match="expected for files, got arrays; pass weights"):
        celu.evaluate(scores, labels, output="binary", weight_column="worth")
    with pytest.raises(ConfigError, match="weights and arrays in by: expected for arrays"):
        celu.evaluate(file, path, weights=np.ones(300))
    with pytest.raises(DataError, match="weights: expected 300 values"):
        celu.evaluate(scores, labels, output="binary", weights=np.ones(3))
