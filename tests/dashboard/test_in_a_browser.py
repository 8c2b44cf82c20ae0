"""The dashboard as a browser shows it: legible at any width, spoken where it should, and silent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Tab, browser
from celu.dashboard.server import Dashboard
from record.folders import events, round_event, write_run

HOSTILE = "</script><img src=x onerror=alert(1)>"
TABLE = [[20, 1, None], [19, 2, 0.75]]
ANNOUNCED = "document.getElementById('announced').textContent"
AMISS = "document.getElementById('amiss').innerText"


@pytest.fixture(scope="module")
def tabs() -> Iterator[Callable[[], Tab]]:
    with browser() as tab:
        yield tab


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    happened = [*events(19), round_event(20, table=TABLE, staleness=1.5)]
    happened[2]["num_rounds"] = 40
    return write_run(tmp_path / "<b>odd & <img src=x>", happened)


@pytest.fixture
def tab(tabs: Callable[[], Tab], folder: Path, tmp_path: Path) -> Iterator[Tab]:
    other = write_run(tmp_path / "other", summary={"status": "done"})
    with Dashboard([folder, other]) as served:
        tab = tabs()
        tab.look(1280)
        tab.open(served.url)
        tab.wait_for("document.querySelectorAll('canvas').length === 7")
        yield tab
        assert tab.errors == []
        assert all(asked.startswith(served.url) for asked in tab.requests)


def append(folder: Path, *happened: dict[str, Any]) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in happened)


def test_names_and_reasons_are_shown_and_not_run(tab: Tab, folder: Path) -> None:
    append(folder, {"t": 99.0, "event": "link_down", "peer": "weather", "reason": HOSTILE})
    tab.wait_for(f"{AMISS}.includes({HOSTILE!r})")
    assert tab.evaluate("document.querySelectorAll('img, b').length") == 0
    assert "<b>odd & <img src=x>" in tab.evaluate("document.title")


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_scrolls_sideways(tab: Tab, width: int, scheme: str) -> None:
    tab.look(width, scheme)
    tab.wait_for("document.querySelector('canvas').clientWidth <= innerWidth")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_every_figure_has_words_and_every_part_a_name(tab: Tab) -> None:
    figures = tab.evaluate("""[...document.querySelectorAll("figure")].map((figure) => [
      figure.querySelector("[role=img]").getAttribute("aria-label"),
      figure.querySelector("h3").textContent, figure.querySelector("figcaption").textContent])""")
    assert len(figures) == 8
    for spoken, title, words in figures:
        assert spoken == f"{title}: {words}" and len(words) > 20
    assert tab.evaluate("document.querySelectorAll('main, header, nav[aria-label]').length") == 3
    unnamed = "[...document.querySelectorAll('input')].filter((i) => !i.labels.length).length"
    assert tab.evaluate(unnamed) == 0


def test_the_table_shows_each_batch_with_its_clocks_and_its_similarity(tab: Tab) -> None:
    rows = """[...document.querySelectorAll("#batches tbody tr")].map((row) =>
      [...row.children].map((cell) => cell.textContent))"""
    assert tab.evaluate(rows) == [["20", "0", "1", "not used yet"], ["19", "1", "2", "0.75"]]


def test_a_warning_is_spoken_when_it_comes_and_when_it_goes(tab: Tab, folder: Path) -> None:
    assert tab.evaluate(AMISS) == "Nothing is amiss." and tab.evaluate(ANNOUNCED) == ""
    down = {"t": 30.0, "event": "link_down", "peer": "weather", "reason": "silent"}
    append(folder, down)
    tab.wait_for(f"{ANNOUNCED}.includes('link to weather: down for')")
    spoken, shown = tab.evaluate(ANNOUNCED), tab.evaluate(AMISS)
    tab.wait_for(f"{AMISS} !== {shown!r}")  # the seconds count up, and nobody is told
    assert tab.evaluate(ANNOUNCED) == spoken
    append(folder, {"t": 31.0, "event": "link_up", "peer": "weather", "seconds": 1.0})
    tab.wait_for(f"{ANNOUNCED}.includes('link to weather: no longer')")
    assert tab.evaluate(AMISS) == "Nothing is amiss."


def test_a_run_that_goes_back_is_drawn_anew(tab: Tab, folder: Path) -> None:
    loss = """[...document.querySelectorAll("#learning figcaption")].map((c) => c.textContent)
      .find((words) => words.includes("from 1 to"))"""
    assert "from 1 to 0.05;" in tab.evaluate(loss)
    append(
        folder,
        {"t": 40.0, "event": "resumed", "round": 10, "num_rounds": 40},
        round_event(11, loss=0.5),
    )
    tab.wait_for(f"({loss}).includes('from 1 to 0.5;')")
    append(folder, round_event(12, loss=0.25))
    tab.wait_for(f"({loss}).includes('from 1 to 0.25;')")


def test_a_reader_keeps_place_and_focus_while_the_page_goes_on(tab: Tab, folder: Path) -> None:
    tab.evaluate("""(() => { const figure = document.querySelector("#link figure");
      figure.querySelector("details").open = true; })()""")
    scroll = "document.querySelector('#link figure .scroll')"
    tab.wait_for(f"{scroll} !== null && {scroll}.scrollHeight > {scroll}.clientHeight")
    tab.evaluate(f"{scroll}.focus(), {scroll}.scrollTop = 40")
    tab.evaluate(f"{scroll}.dataset.seen = 'before'")
    append(folder, round_event(21))
    tab.wait_for(f"{scroll}.dataset.seen === undefined")
    assert tab.evaluate(f"document.activeElement === {scroll} && {scroll}.scrollTop === 40")
