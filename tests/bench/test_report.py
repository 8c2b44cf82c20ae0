"""The result of a bench, on screen and as JSON."""

import json
from pathlib import Path

from rich.console import Console

from bench.report import BenchResult
from bench.rounds import _ratio, best_rate


def test_a_result_has_its_figures_command_versions_and_hardware(tmp_path: Path) -> None:
    result = BenchResult("step", seeds=[1], rows=[{"a": 1.5}], figures={"x_over_y": 1.1})
    written = json.loads(result.write(tmp_path / "new").read_text())
    assert written["bench"] == "step" and written["seeds"] == [1]
    assert written["figures"] == {"x_over_y": 1.1} and written["rows"] == [{"a": 1.5}]
    assert written["command"].split()[0] == "scripts/bench"
    assert written["versions"]["torch"] and written["hardware"]["cpus"]


def test_a_result_shows_rows_with_missing_columns_and_values() -> None:
    console = Console(record=True, width=100)
    BenchResult("b", [1], [{"a": 1}, {"b": [1, None]}], {"f": None}).show(console)
    text = console.export_text()
    assert "1, none" in text and "f = none" in text


def test_tuning_chooses_the_rate_with_the_fewest_rounds_and_skips_failures() -> None:
    assert best_rate({0.1: 300.0, 1.0: 200.0, 10.0: None}) == (1.0, 200.0)
    assert best_rate({0.1: None}) == (0.1, None)


def test_on_a_plateau_tuning_chooses_the_smaller_rate() -> None:
    assert best_rate({0.1: 300.0, 1.0: 205.0, 3.0: 200.0}) == (1.0, 205.0)


def test_a_ratio_with_a_run_that_missed_the_target_is_none() -> None:
    assert _ratio(100.0, 200.0) == 0.5
    assert _ratio(None, 200.0) is None
