"""Evaluations: slices, comparisons, fallback rows; from arrays as from files; figures only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

import celu
from celu.errors import ConfigError, DataError
from celu.scores.evaluation import MAX_SLICES
from celu.scores.page import render
from scores.samples import (
    binary,
    ids,
    multiclass,
    regression,
    write_labels,
    write_scores,
)

ROWS = 2000
SCORES, LABELS = binary(ROWS, digits=7)
WORSE = np.clip(SCORES + np.random.default_rng(1).normal(0, 0.2, ROWS), 0, 1).astype(np.float32)
CITY = np.random.default_rng(2).choice(["Berlin", "Paris"], ROWS, p=[0.7, 0.3])


def evaluated(**more: Any) -> celu.ScoreEvaluation:
    options = {"output": "binary", "resamples": 200, **more}
    return celu.evaluate(SCORES, LABELS, **options)


def test_metrics_come_with_intervals_around_them() -> None:
    found = evaluated()
    assert found.metrics["auc"] == pytest.approx(sk.roc_auc_score(LABELS, SCORES))
    for figure in found.overall.metrics.values():
        assert figure.low is not None and figure.high is not None
        assert figure.low < figure.value < figure.high
    assert found.rows.evaluated == found.overall.rows == ROWS
    assert found.details.roc is not None and found.details.calibration_error is not None


def test_each_slice_is_evaluated_on_its_own_rows() -> None:
    found = evaluated(by={"city": CITY})
    assert [group.value for group in found.slices] == ["Berlin", "Paris"]
    for group in found.slices:
        rows = group.value == CITY
        assert group.column == "city" and group.rows == rows.sum()
        expected = sk.roc_auc_score(LABELS[rows], SCORES[rows])
        assert group.metrics["auc"].value == pytest.approx(expected)
    wide, narrow = (group.metrics["auc"] for group in reversed(found.slices))
    assert (wide.high or 0) - (wide.low or 0) > (narrow.high or 0) - (narrow.low or 0)


def test_a_slice_with_few_rows_or_one_class_has_a_note_and_no_figures() -> None:
    by = np.where(np.arange(ROWS) < 50, "few", np.where(LABELS == 1, "positive", "negative"))
    found = evaluated(by={"part": by})
    notes = {group.value: (group.note, group.metrics) for group in found.slices}
    assert notes == {
        "few": ("fewer than 100 rows", {}),
        "positive": ("one class only", {}),
        "negative": ("one class only", {}),
    }
    assert evaluated(by={"part": by}, min_rows=50).slices[-1].metrics != {}


def test_only_the_largest_slices_are_shown_and_the_rest_is_counted() -> None:
    by = np.concatenate([np.arange(60).repeat(20), np.full(ROWS - 1200, 999)])
    found = evaluated(by={"shop": by}, resamples=0)
    assert len(found.slices) == MAX_SLICES and found.slices[0].value == "999"
    (rest,) = found.rest
    assert (rest.column, rest.slices, rest.rows) == ("shop", 11, 220)


def test_the_values_of_a_column_like_an_id_appear_nowhere() -> None:
    found = evaluated(by={"customer": ids(ROWS)}, resamples=0)
    assert found.slices == () and found.rest[0].slices == ROWS
    assert "person" not in json.dumps(found.to_json()) + render(found)


def test_the_lift_is_paired_and_its_interval_excludes_zero_for_a_better_model() -> None:
    found = evaluated(against=WORSE, by={"city": CITY})
    lift = found.overall.lift["auc"]
    expected = sk.roc_auc_score(LABELS, SCORES) - sk.roc_auc_score(LABELS, WORSE)
    assert lift.value == pytest.approx(expected)
    assert lift.low is not None and 0 < lift.low < lift.value and lift.excludes_zero
    assert {found.overall.lift[name].verdict for name in ("auc", "log_loss", "brier")} == {"better"}
    swapped = celu.evaluate(WORSE, LABELS, against=SCORES, output="binary", resamples=200)
    back = swapped.overall.lift["auc"]
    assert (back.low, back.high) == pytest.approx((-(lift.high or 0), -lift.low))
    assert back.verdict == "worse"
    ours, theirs = found.overall.metrics["auc"], found.overall.against["auc"]
    assert lift.low > (ours.low or 0) - (theirs.high or 0), "pairing makes the interval narrower"
    assert all(group.lift["auc"].excludes_zero for group in found.slices)


def test_a_model_has_no_lift_over_itself() -> None:
    found = evaluated(against=SCORES)
    for lift in found.overall.lift.values():
        assert (lift.value, lift.low, lift.high, lift.verdict) == (0, 0, 0, "unclear")


def test_rows_with_and_without_fallback_are_evaluated_if_both_occur() -> None:
    flags = np.arange(ROWS) % 4 == 0
    found = evaluated(fallback=flags)
    assert [(g.value, g.rows) for g in found.fallback] == [("no", 1500), ("yes", 500)]
    expected = sk.roc_auc_score(LABELS[flags], SCORES[flags])
    assert found.fallback[1].metrics["auc"].value == pytest.approx(expected)
    assert evaluated(fallback=~np.zeros(ROWS, np.bool_)).fallback == ()


def test_without_resamples_there_are_no_intervals() -> None:
    found = evaluated(resamples=0, against=WORSE)
    assert found.overall.metrics["auc"].low is None
    assert found.overall.lift["auc"].verdict == "unclear"


def test_labels_of_one_class_are_refused() -> None:
    with pytest.raises(DataError, match="expected labels of both classes"):
        celu.evaluate(SCORES, np.ones(ROWS), output="binary")


def test_multiclass_and_regression_have_their_own_metrics_and_tables() -> None:
    scores, labels = multiclass()
    found = celu.evaluate(scores, labels, output="multiclass", resamples=100)
    assert list(found.metrics) == ["accuracy", "log_loss", "macro_auc", "macro_f1"]
    right = scores.argmax(axis=1) == labels
    bins = found.details.bins
    assert sum(b.rows * b.mean_label for b in bins) == pytest.approx(right.sum())
    scores, labels = regression()
    found = celu.evaluate(scores, labels, output="regression", resamples=100)
    assert list(found.metrics) == ["rmse", "mae", "r2"]
    assert len(found.details.bins) == 10 and found.details.calibration_error is None


def test_classes_without_labels_are_noted_and_left_out_of_the_macro_auc() -> None:
    scores, labels = multiclass()
    rows = labels != 3
    found = celu.evaluate(scores[rows], labels[rows], output="multiclass", resamples=100)
    assert found.overall.note == "1 of 4 classes without labels"
    areas = [sk.roc_auc_score(labels[rows] == k, scores[rows, k]) for k in range(3)]
    assert found.metrics["macro_auc"] == pytest.approx(np.mean(areas))


def test_tensors_and_lists_are_evaluated_like_arrays() -> None:
    expected = evaluated().to_json()
    for given in (torch.from_numpy(SCORES), SCORES.astype(np.float64)):
        found = celu.evaluate(given, torch.from_numpy(LABELS), output="binary", resamples=200)
        assert found.metrics["auc"] == expected["overall"]["metrics"]["auc"]["value"]


@pytest.mark.parametrize("output", ["binary", "multiclass", "regression"])
def test_files_are_evaluated_like_arrays_and_no_figure_holds_an_id(
    output: Any, tmp_path: Path
) -> None:
    sample = {"binary": binary, "multiclass": multiclass, "regression": regression}[output]
    (scores, labels), (other, _) = sample(1000), sample(1000, seed=1)
    flags, city = np.arange(1000) % 3 == 0, CITY[:1000]
    ours = write_scores(tmp_path / "s.parquet", scores, output=output, fallback=flags)
    theirs = write_scores(tmp_path / "t.parquet", other, output=output, model="alone")
    path = write_labels(tmp_path / "y.parquet", labels, city=city)
    read = celu.evaluate(ours, str(path), by=["city"], against=theirs, resamples=100)
    passed = celu.evaluate(
        scores,
        labels,
        output=output,
        by={"city": city},
        against=other,
        fallback=flags,
        resamples=100,
    )
    a, b = read.to_json(), passed.to_json()
    assert (a.pop("model"), a.pop("against_model")) == ("joint", "alone")
    assert (b.pop("model"), b.pop("against_model")) == ("model", "against")
    assert a == b
    for text in (json.dumps(read.to_json(), allow_nan=False), render(read)):
        assert "person" not in text and "Berlin" in text


@pytest.mark.parametrize(
    "options",
    [{"resamples": 50}, {"resamples": -1}, {"seed": -1}, {"min_rows": 0}, {"output": None}],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        evaluated(**options)


def test_arrays_and_files_do_not_mix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected for arrays, got files"):
        celu.evaluate(tmp_path / "s.parquet", tmp_path / "y.csv", output="binary")
    with pytest.raises(ConfigError, match="expected files or arrays, got both"):
        celu.evaluate(tmp_path / "s.parquet", LABELS)
    with pytest.raises(ConfigError, match="by: expected an array for each name"):
        evaluated(by=["city"])


def test_a_missing_value_is_a_slice_of_its_own(tmp_path: Path) -> None:
    scores = write_scores(tmp_path / "s.parquet", SCORES)
    city = [None if row % 2 else "Rome" for row in range(ROWS)]
    labels = write_labels(tmp_path / "y.parquet", LABELS, city=city)
    found = celu.evaluate(scores, labels, by=["city"], resamples=0)
    assert {(g.value, g.rows) for g in found.slices} == {("Rome", 1000), ("(missing)", 1000)}


def test_an_undefined_figure_is_null_in_json() -> None:
    found = celu.evaluate([1.0, 2, 3], [5.0, 5, 5], output="regression", resamples=0)
    assert np.isnan(found.metrics["r2"])
    assert found.to_json()["overall"]["metrics"]["r2"]["value"] is None
