"""Reports in a real browser: charts, layout, interaction, no console errors or requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from browser import DRAWN_PIXELS, HOSTILE, Tab, assert_no_errors_or_requests, open_file
from celu.record.run import RunRecord
from celu.report.render import render
from record.folders import evaluation_event, events, round_event, write_run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    other = [{**e, "loss": 2 * e["loss"]} if "loss" in e else e for e in events()]
    failed = [
        *events(25),
        {"t": 20.0, "event": "link_down", "peer": "weather", "reason": HOSTILE},
        {"t": 21.0, "event": "attempt", "number": 2},
        {"t": 22.0, "event": "resumed", "round": 20, "num_rounds": 40},
        round_event(21),
        {"t": 23.0, "event": "choice", "round": 21, "until": 30, "seconds": 9.0, "reason": HOSTILE},
        evaluation_event(30, 0.8),
    ]
    paths = [
        write_run(folder / "vanilla", summary={"status": "done"}),
        write_run(folder / "celu", other, job={"seed": 2}, summary={"status": "done"}),
        write_run(folder / "<b>odd & <img src=x>", failed, summary={"status": HOSTILE}),
        write_run(folder / "weather", party="weather"),
    ]
    out = folder / "report.html"
    out.write_text(render([RunRecord(path) for path in paths]), encoding="utf-8")
    return out


@pytest.fixture
def tab(tabs: Callable[[], Tab], report: Path) -> Tab:
    return open_file(tabs, report)


def test_a_report_is_drawn_without_errors_or_requests(tab: Tab, report: Path) -> None:
    drawn = tab.evaluate(DRAWN_PIXELS)
    assert len(drawn) == 6 and all(count > 500 for count in drawn)
    assert tab.evaluate("document.querySelectorAll('#time rect[y]').length") > 20
    assert_no_errors_or_requests(tab, report)


def test_every_figure_has_a_title_a_caption_and_a_data_table(tab: Tab, report: Path) -> None:
    figures = tab.evaluate("""[...document.querySelectorAll("figure")].map((figure) => {
      const details = figure.querySelector("details");
      details.open = true;
      details.dispatchEvent(new Event("toggle"));
      return [figure.querySelector("h3").textContent,
        figure.querySelector("[role=img]").getAttribute("aria-label"),
        figure.querySelector("figcaption").textContent,
        figure.querySelectorAll("details td").length];
    })""")
    assert len(figures) == 7
    for title, label, caption, cells in figures:
        assert title and label == f"{title}: {caption}" and len(caption) > 20 and cells > 3, title
    assert_no_errors_or_requests(tab, report)


def test_names_and_reasons_are_shown_as_text_and_never_executed(tab: Tab, report: Path) -> None:
    assert tab.evaluate("document.querySelectorAll('img, b').length") == 0
    text = tab.evaluate("document.body.innerText")
    assert "<b>odd & <img src=x>" in text and HOSTILE in text
    assert tab.evaluate("document.title").startswith("Report of vanilla")
    assert_no_errors_or_requests(tab, report)


def test_the_legend_shows_and_hides_a_run_in_all_figures(tab: Tab, report: Path) -> None:
    captions = "[...document.querySelectorAll('figcaption')].map((c) => c.textContent)"
    before, lanes = tab.evaluate(captions), "document.querySelectorAll('#time rect[y]').length"
    spans, drawn = tab.evaluate(lanes), tab.evaluate(DRAWN_PIXELS)
    assert sum("celu" in caption for caption in before) == 7
    tab.evaluate("document.querySelector('#legend input[value=\"1\"]').click()")
    assert not any("celu" in caption for caption in tab.evaluate(captions))
    assert tab.evaluate(lanes) < spans
    tab.wait_for(f"({DRAWN_PIXELS})[2] !== {drawn[2]}")
    tab.evaluate("document.querySelector('#legend input[value=\"1\"]').click()")
    assert tab.evaluate(captions) == before
    assert_no_errors_or_requests(tab, report)


def test_the_x_axis_can_be_rounds_bytes_or_time(tab: Tab, report: Path) -> None:
    caption = "document.querySelector('#learning figcaption').textContent"
    assert "at round 40" in tab.evaluate(caption)
    tab.evaluate("document.querySelector('#x-axis input[value=bytes]').click()")
    assert "at 100 kB" in tab.evaluate(caption)
    tab.evaluate("document.querySelector('#x-axis input[value=seconds]').click()")
    assert "at 20 s" in tab.evaluate(caption)
    tab.evaluate("document.querySelector('#positions input[value=beginning]').click()")
    assert_no_errors_or_requests(tab, report)


def test_hovering_over_a_chart_shows_its_values(tab: Tab, report: Path) -> None:
    tab.evaluate("""(() => { const over = document.querySelector(".u-over");
      const box = over.getBoundingClientRect();
      over.dispatchEvent(new MouseEvent("mousemove",
        {clientX: box.right - 2, clientY: box.top + 9, bubbles: true})); })()""")
    tab.wait_for("document.querySelector('.readout').textContent.startsWith('round 40: ')")
    readout = tab.evaluate("document.querySelector('.readout').textContent")
    assert "vanilla · airline 0.7" in readout and "celu · airline 0.7" in readout
    assert_no_errors_or_requests(tab, report)


@pytest.mark.parametrize("width", [400, 1280, 2200])
def test_the_page_never_scrolls_sideways(tab: Tab, report: Path, width: int) -> None:
    tab.set_viewport(width)
    tab.wait_for("document.querySelector('canvas').clientWidth <= innerWidth")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert all(count > 500 for count in tab.evaluate(DRAWN_PIXELS))
    assert_no_errors_or_requests(tab, report)


def test_the_colour_scheme_can_change_while_the_page_is_open(tab: Tab, report: Path) -> None:
    pixels = """(() => { const c = document.querySelector("canvas");
      return c.toDataURL() + getComputedStyle(document.body).backgroundColor; })()"""
    light = tab.evaluate(pixels)
    tab.set_viewport(1280, "dark")
    tab.wait_for(f"({pixels}) !== {light!r}")
    assert "rgb(20, 23, 28)" in tab.evaluate(pixels)
    tab.set_viewport(1280, "light")
    tab.wait_for(f"({pixels}) === {light!r}")
    assert_no_errors_or_requests(tab, report)
