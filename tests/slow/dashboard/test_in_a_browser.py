"""The dashboard in a real browser: layout, accessibility, live updates, no console errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import HOSTILE, Tab
from celu.dashboard.server import Dashboard
from record.folders import events, round_event, write_run

TABLE = [[20, 1, None], [19, 2, 0.75]]
ANNOUNCED = "document.getElementById('announcements').textContent"
WARNINGS = "document.getElementById('warning-list').innerText"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = [*events(19), round_event(20, table=TABLE, staleness=1.5)]
    written[2]["num_rounds"] = 40
    return write_run(tmp_path / "<b>odd & <img src=x>", written)


@pytest.fixture
def tab(tabs: Callable[[], Tab], folder: Path, tmp_path: Path) -> Iterator[Tab]:
    other = write_run(tmp_path / "other", summary={"status": "done"})
    with Dashboard([folder, other]) as served:
        tab = tabs()
        tab.set_viewport(1280)
        tab.open(served.url)
        tab.wait_for("document.querySelectorAll('canvas').length === 7")
        yield tab
        assert tab.errors == []
        assert all(url.startswith(served.url) for url in tab.requests)


def append(folder: Path, *new_events: dict[str, Any]) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in new_events)


def test_names_and_reasons_are_shown_as_text_and_never_executed(tab: Tab, folder: Path) -> None:
    append(folder, {"t": 99.0, "event": "link_down", "peer": "weather", "reason": HOSTILE})
    tab.wait_for(f"{WARNINGS}.includes({HOSTILE!r})")
    assert tab.evaluate("document.querySelectorAll('img, b').length") == 0
    assert "<b>odd & <img src=x>" in tab.evaluate("document.title")


def test_a_learning_rate_is_drawn_once_it_has_changed(tab: Tab, folder: Path) -> None:
    drawn = "document.getElementById('learning').innerText.includes('Learning rate')"
    append(folder, round_event(21, lr=0.1), round_event(22, lr=0.1))
    tab.wait_for("document.body.innerText.includes('22 of 40')")
    assert not tab.evaluate(drawn)
    append(folder, round_event(23, lr=0.05))
    tab.wait_for(drawn)


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_never_scrolls_sideways(tab: Tab, width: int, scheme: str) -> None:
    tab.set_viewport(width, scheme)
    tab.wait_for("document.querySelector('canvas').clientWidth <= innerWidth")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_every_figure_has_a_caption_and_every_landmark_and_input_a_name(tab: Tab) -> None:
    figures = tab.evaluate("""[...document.querySelectorAll("figure")].map((figure) => [
      figure.querySelector("[role=img]").getAttribute("aria-label"),
      figure.querySelector("h3").textContent, figure.querySelector("figcaption").textContent])""")
    assert len(figures) == 8
    for aria_label, title, caption in figures:
        assert aria_label == f"{title}: {caption}" and len(caption) > 20
    assert tab.evaluate("document.querySelectorAll('main, header, nav[aria-label]').length") == 3
    unnamed = "[...document.querySelectorAll('input')].filter((i) => !i.labels.length).length"
    assert tab.evaluate(unnamed) == 0


def test_the_table_shows_each_batch_with_its_round_age_uses_and_similarity(tab: Tab) -> None:
    rows = """[...document.querySelectorAll("#batches tbody tr")].map((row) =>
      [...row.children].map((cell) => cell.textContent))"""
    assert tab.evaluate(rows) == [["20", "0", "1", "not used yet"], ["19", "1", "2", "0.75"]]


def test_a_warning_is_announced_when_it_appears_and_when_it_is_resolved(
    tab: Tab, folder: Path
) -> None:
    assert tab.evaluate(WARNINGS) == "No warnings." and tab.evaluate(ANNOUNCED) == ""
    down = {"t": 30.0, "event": "link_down", "peer": "weather", "reason": "silent"}
    append(folder, down)
    tab.wait_for(f"{ANNOUNCED}.includes('link to weather: down for')")
    announced, shown = tab.evaluate(ANNOUNCED), tab.evaluate(WARNINGS)
    tab.wait_for(f"{WARNINGS} !== {shown!r}")  # the seconds count up without an announcement
    assert tab.evaluate(ANNOUNCED) == announced
    append(folder, {"t": 31.0, "event": "link_up", "peer": "weather", "seconds": 1.0})
    tab.wait_for(f"{ANNOUNCED}.includes('link to weather: resolved')")
    assert tab.evaluate(WARNINGS) == "No warnings."


def test_a_run_that_resumes_from_an_earlier_round_is_redrawn(tab: Tab, folder: Path) -> None:
    loss = """[...document.querySelectorAll("#learning figcaption")].map((c) => c.textContent)
      .find((text) => text.includes("from 1 to"))"""
    assert "from 1 to 0.05;" in tab.evaluate(loss)
    append(
        folder,
        {"t": 40.0, "event": "resumed", "round": 10, "num_rounds": 40},
        round_event(11, loss=0.5),
    )
    tab.wait_for(f"({loss}).includes('from 1 to 0.5;')")
    append(folder, round_event(12, loss=0.25))
    tab.wait_for(f"({loss}).includes('from 1 to 0.25;')")


def test_scroll_position_and_focus_survive_an_update(tab: Tab, folder: Path) -> None:
    tab.evaluate("""(() => { const figure = document.querySelector("#link figure");
      figure.querySelector("details").open = true; })()""")
    scroll = "document.querySelector('#link figure .scroll')"
    tab.wait_for(f"{scroll} !== null && {scroll}.scrollHeight > {scroll}.clientHeight")
    tab.evaluate(f"{scroll}.focus(), {scroll}.scrollTop = 40")
    tab.evaluate(f"{scroll}.dataset.seen = 'before'")
    append(folder, round_event(21))
    tab.wait_for(f"{scroll}.dataset.seen === undefined")
    assert tab.evaluate(f"document.activeElement === {scroll} && {scroll}.scrollTop === 40")
