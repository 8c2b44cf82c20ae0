"""The page of an evaluation in a real browser: charts, tables, no errors and no requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import celu
from browser import DRAWN_PIXELS, HOSTILE, Tab, assert_no_errors_or_requests, open_file
from celu.scores.page import render
from scores.samples import binary, multiclass, regression, write_labels, write_scores


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two binary models, with slices, fallback rows and hostile names."""
    folder = tmp_path_factory.mktemp("evaluation")
    scores, labels = binary(2000)
    city = np.where(np.arange(2000) % 3, HOSTILE, "Oslo")
    city[:20] = "small"
    ours = write_scores(
        folder / "s.parquet", scores, model=HOSTILE, fallback=np.arange(2000) % 2 == 0
    )
    theirs = write_scores(folder / "t.parquet", binary(2000, seed=5)[0], model="alone")
    path = write_labels(folder / "y.parquet", labels, city=city)
    found = celu.evaluate(ours, path, by=["city"], against=theirs, resamples=100)
    out = folder / "evaluation.html"
    out.write_text(render(found), encoding="utf-8")
    return out


@pytest.fixture
def tab(tabs: Callable[[], Tab], page: Path) -> Tab:
    return open_file(tabs, page)


def test_the_charts_are_drawn_without_errors_or_requests(tab: Tab, page: Path) -> None:
    titles = tab.evaluate("[...document.querySelectorAll('h3')].map((h) => h.textContent)")
    assert titles == ["ROC curve", "Precision and recall", "Calibration"]
    drawn = tab.evaluate(DRAWN_PIXELS)
    assert len(drawn) == 3 and all(count > 500 for count in drawn)
    assert tab.evaluate("document.querySelectorAll('#legend li').length") == 3
    assert_no_errors_or_requests(tab, page)


def test_the_tables_hold_the_metrics_the_lift_and_the_slices(tab: Tab, page: Path) -> None:
    rows = "[...document.querySelectorAll('#{} tbody tr')].map((row) => row.innerText)"
    metrics = tab.evaluate(rows.format("metrics"))
    assert len(metrics) == 7 and metrics[0].startswith("AUC") and "better" in metrics[0]
    slices = tab.evaluate(rows.format("slices"))
    assert slices[0].startswith(HOSTILE) and "fewer than 100 rows" in slices[2]
    assert len(tab.evaluate(rows.format("bins"))) == 20
    assert len(tab.evaluate(rows.format("fallback"))) >= 2
    assert_no_errors_or_requests(tab, page)


def test_every_figure_has_a_caption_and_a_data_table(tab: Tab, page: Path) -> None:
    figures = tab.evaluate("""[...document.querySelectorAll("figure")].map((figure) => {
      const details = figure.querySelector("details");
      details.open = true;
      details.dispatchEvent(new Event("toggle"));
      return [figure.querySelector("[role=img]").getAttribute("aria-label"),
        figure.querySelector("figcaption").textContent,
        figure.querySelectorAll("details td").length];
    })""")
    for label, caption, cells in figures:
        assert label.endswith(caption) and len(caption) > 20 and cells > 10
    assert_no_errors_or_requests(tab, page)


def test_names_are_shown_as_text_and_never_executed(tab: Tab, page: Path) -> None:
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert tab.evaluate("document.querySelector('h1').textContent") == f"Evaluation of {HOSTILE}"
    assert_no_errors_or_requests(tab, page)


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_never_scrolls_sideways(tab: Tab, page: Path, width: int) -> None:
    tab.set_viewport(width)
    tab.wait_for("document.querySelector('canvas').clientWidth <= innerWidth")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert all(count > 500 for count in tab.evaluate(DRAWN_PIXELS))
    assert_no_errors_or_requests(tab, page)


def test_one_model_of_any_output_is_drawn(tabs: Callable[[], Tab], tmp_path: Path) -> None:
    one_each = {
        "binary": (binary(), 3),
        "multiclass": (multiclass(), 1),
        "regression": (regression(), 1),
    }
    for output, ((scores, labels), charts) in one_each.items():
        found = celu.evaluate(scores, labels, output=output, resamples=0)  # type: ignore[arg-type]
        out = tmp_path / f"{output}.html"
        out.write_text(render(found), encoding="utf-8")
        tab = open_file(tabs, out)
        drawn = tab.evaluate(DRAWN_PIXELS)
        assert len(drawn) == charts and all(count > 500 for count in drawn), output
        assert tab.evaluate("document.getElementById('slices')") is None
        assert_no_errors_or_requests(tab, out)
