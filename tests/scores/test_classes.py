"""Scores files name the classes of the labels, and labels are read as these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import celu
from celu.errors import ConfigError, DataError
from celu.scores.file import ScoreWriter, read_scores

IDS = [f"r{row}" for row in range(40)]
IS_POSITIVE = np.arange(40) % 3 == 0
SCORES = np.where(IS_POSITIVE, 0.8, 0.3) - np.arange(40) / 1000


def write(path: Path, classes: Any) -> Path:
    with ScoreWriter(path, model="m", output="binary", classes=classes) as file:
        file.write(IDS, SCORES, [""] * 40, [False] * 40)
    return path


def labels_file(folder: Path, negative: str, positive: str) -> Path:
    path = folder / "labels.csv"
    rows = [f"{i},{positive if p else negative}" for i, p in zip(IDS, IS_POSITIVE, strict=True)]
    path.write_text("\n".join(["id,label", *rows]) + "\n")
    return path


@pytest.mark.parametrize("classes", [("no", "yes"), (1, 2), (2, 1), (-1.5, 3.5), ("2", "1")])
def test_labels_of_a_file_are_the_classes_of_the_scores(tmp_path: Path, classes: Any) -> None:
    scores = write(tmp_path / "s.parquet", classes)
    assert read_scores(scores).classes == classes
    labels = labels_file(tmp_path, *map(str, classes))
    assert celu.evaluate(scores, labels, resamples=0).metrics["auc"] == 1


def test_a_store_part_with_codes_is_a_labels_file_too(tmp_path: Path) -> None:
    scores = write(tmp_path / "s.parquet", ("no", "yes"))
    codes = pd.DataFrame({"id": IDS, "label": IS_POSITIVE.astype(np.int64)})
    codes.to_parquet(tmp_path / "test.parquet")
    assert celu.evaluate(scores, tmp_path / "test.parquet", resamples=0).metrics["auc"] == 1


@pytest.mark.parametrize(("classes", "other"), [(("no", "yes"), "maybe"), ((1, 2), "3")])
def test_labels_that_are_no_class_are_counted_and_refused(
    tmp_path: Path, classes: Any, other: str
) -> None:
    scores = write(tmp_path / "s.parquet", classes)
    with pytest.raises(DataError, match=r"expected the 2 classes of the model, got .* in 14 rows"):
        celu.evaluate(scores, labels_file(tmp_path, str(classes[0]), other), resamples=0)


def test_models_of_other_classes_are_not_compared(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.parquet", (1, 2)), write(tmp_path / "b.parquet", (2, 1))
    with pytest.raises(DataError, match="or other classes; compare models of the same task"):
        celu.evaluate(one, labels_file(tmp_path, "1", "2"), against=other, resamples=0)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", "[1, 1]", '["1", 1]', "[true, false]", "[[], []]", "[NaN, 1]", "[" * 9],
)
def test_damaged_classes_are_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "s.parquet", (1, 2))
    table = pq.read_table(path)
    pq.write_table(
        table.replace_schema_metadata(table.schema.metadata | {b"celu.classes": text.encode()}),
        path,
    )
    with pytest.raises(DataError, match=r"celu\.classes: expected 2 different classes"):
        read_scores(path)


def test_arrays_of_text_are_evaluated_with_the_classes_of_the_predictions() -> None:
    labels = np.where(IS_POSITIVE, "yes", "no")
    kinds = (labels, pd.Series(labels), pd.Series(labels, dtype="category"))
    for given in kinds:
        found = celu.evaluate(SCORES, given, output="binary", classes=("no", "yes"), resamples=0)
        assert found.metrics["auc"] == 1
    swapped = celu.evaluate(SCORES, labels, output="binary", classes=("yes", "no"), resamples=0)
    assert swapped.metrics["auc"] == 0
    with pytest.raises(ConfigError, match="classes: expected those of text labels"):
        celu.evaluate(SCORES, labels, output="binary", resamples=0)
