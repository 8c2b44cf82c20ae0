"""`celu evaluate`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from celu.cli.app import app
from celu.errors import CeluError, ConfigError, DataError
from scores.samples import binary, regression, write_labels, write_scores

ROWS = 1000
SCORES, LABELS = binary(ROWS)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    city = np.where(np.arange(ROWS) % 3, "[red]Rome\x1b[2J", "Oslo")
    write_labels(tmp_path / "y.parquet", LABELS, city=city)
    write_scores(tmp_path / "s.parquet", SCORES[:900], fallback=np.arange(900) % 2 == 0)
    write_scores(tmp_path / "t.parquet", SCORES[::-1].copy(), model="alone")
    return tmp_path


def run(folder: Path, *options: str) -> str:
    arguments = ["evaluate", str(folder / "s.parquet"), "--labels", str(folder / "y.parquet")]
    result = CliRunner().invoke(
        app, [*arguments, "--resamples", "100", *options], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_it_prints_metrics_with_intervals_and_what_was_not_evaluated(files: Path) -> None:
    text = run(files)
    assert "joint: binary, 900 rows evaluated" in text
    assert "not evaluated: 100 labelled rows without a score" in text
    for title in ("AUC", "PR-AUC", "log loss", "KS", "accuracy", "Brier score"):
        assert re.search(rf"^{title} +0\.\d+ +0\.\d+ to 0\.\d+$", text, re.MULTILINE), title
    assert "calibration error" in text and "AUC by fallback" in text
    assert "person" not in text


def test_it_reports_a_metric_of_ones_own_with_an_interval_and_a_lift(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(files)
    (files / "metrics_of_this_test.py").write_text(
        "import celu\n"
        "@celu.metric(higher_is_better=False)\n"
        "def miss(scores, labels):\n    return abs(scores - labels).mean()\n"
    )
    own = ("--metric", "metrics_of_this_test:miss")
    text = run(files, *own, "--out", str(files / "e.html"))
    assert re.search(r"^miss +0\.\d+ +0\.\d+ to 0\.\d+$", text, re.MULTILINE)
    assert '"miss"' in (files / "e.html").read_text()
    text = run(files, *own, "--against", str(files / "t.parquet"))
    assert re.search(r"^miss +0\.\d+ +0\.\d+ +-0\.\d+ +-0\.\d+ to -0\.\d+ +better", text, re.M)
    with pytest.raises(ConfigError, match="expected only your own"):
        run(files, "--metric", "auc")


def test_it_slices_by_the_hosts_that_took_part(files: Path) -> None:
    text = run(files, "--by", "hosts")
    assert re.search(r"^bank,shop +450 ", text, re.M) and re.search(r"^\(none\) +450 ", text, re.M)


def test_it_prints_the_lift_and_the_slices_in_80_columns(files: Path) -> None:
    text = run(files, "--against", str(files / "t.parquet"), "--by", "city")
    assert "lift over alone on the same rows" in text
    assert re.search(r"^AUC +0\.\d+ +0\.\d+ +\+0\.\d+ +0\.\d+ to 0\.\d+ +better", text, re.M)
    assert re.search(r"^Oslo +300 ", text, re.M)
    assert "[red]Rome?[2J" in text, "a value is shown as it is, and cannot control a terminal"
    assert max(map(len, text.splitlines())) <= 80


def test_it_writes_all_figures_as_json_and_a_page(files: Path) -> None:
    text = run(
        files, "--by", "city", "--json", str(files / "e.json"), "--out", str(files / "e.html")
    )
    assert text.count("written to") == 2
    data = json.loads((files / "e.json").read_text())
    assert data["format"] == "celu-evaluation-1"
    assert data["overall"]["metrics"]["auc"]["low"] < data["overall"]["metrics"]["auc"]["value"]
    assert [group["rows"] for group in data["slices"]] == [600, 300]
    page = (files / "e.html").read_text()
    assert "<html" in page and "person" not in page + json.dumps(data)


def test_equal_seeds_give_equal_files(files: Path) -> None:
    for name in ("a", "b"):
        run(files, "--json", str(files / name), "--seed", "4")
    run(files, "--json", str(files / "c"), "--seed", "5")
    a, b, c = ((files / name).read_bytes() for name in "abc")
    assert a == b != c


def test_regression_has_deciles(tmp_path: Path) -> None:
    scores, labels = regression()
    write_labels(tmp_path / "y.parquet", labels)
    write_scores(tmp_path / "s.parquet", scores, output="regression")
    text = run(tmp_path)
    assert "RMSE" in text and "deciles of the score" in text


@pytest.mark.parametrize(
    ("options", "kind", "problem"),
    [
        (("--out", "nowhere/e.html"), ConfigError, "--out: the folder of"),
        (("--by", "id"), ConfigError, "--by: expected columns other than the id"),
        (("--by", "town"), DataError, "expected a column 'town'"),
        (("--resamples", "7"), ConfigError, "resamples: expected 100 to 100,000"),
        (("--against", "none.parquet"), DataError, "expected a file, got none"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    options: tuple[str, ...], kind: type[CeluError], problem: str, files: Path
) -> None:
    before = set(files.iterdir())
    arguments = ["evaluate", str(files / "s.parquet"), "--labels", str(files / "y.parquet")]
    result = CliRunner().invoke(app, [*arguments, "--json", str(files / "e.json"), *options])
    assert isinstance(result.exception, kind) and problem in str(result.exception)
    assert set(files.iterdir()) == before
