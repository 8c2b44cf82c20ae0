"""The model card: complete, and Markdown that no column name can break."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from celu.serving.card import _table
from celu.serving.export import export_run
from serving.trained import NAMES, Task, Trained, run_from_python, train

MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("task"), Task())


def read_card(run: Path, out: Path) -> dict[str, dict[str, str]]:
    """The tables of a card by title, as a browser would show them."""
    export_run(run, out)
    page = MARKDOWN.render((out / "card.md").read_text())
    tables = {}
    for section in page.split("<h2>")[1:]:
        title, _, rest = section.partition("</h2>")
        cells = re.findall(r"<td>(.*?)</td>\s*<td>(.*?)</td>", rest, re.DOTALL)
        tables[title] = {unescape(name): unescape(value) for name, value in cells}
    return tables


def test_the_card_of_a_guest_has_data_metrics_settings_and_traffic(
    trained: Trained, tmp_path: Path
) -> None:
    tables = read_card(trained.runs["airline"], tmp_path / "model")
    summary = json.loads((trained.runs["airline"] / "summary.json").read_text())
    data = tables["Data"]
    assert (data["training rows"], data["held-out rows"]) == ("160", "160")
    assert data["input numbers"] == ", ".join(" ".join(name.split()) for name in NAMES)
    assert tables["Metrics on held-out rows"]["auc"] == f"{summary['evaluations'][-1]['auc']:.5f}"
    assert tables["Model"]["bottom"] == "wdl embedding_dim=3 hidden=[5]"
    assert tables["Model"]["loss"] == "binary"
    crossed = tables["What crossed the link"]
    assert crossed["rounds"] == "6"
    assert crossed["codec of activation"] == "fp32"
    traffic = summary["traffic"]
    assert crossed["sent in training (dZ)"] == f"{traffic['bytes_sent']:,} bytes"
    assert crossed["received in training (Z)"] == f"{traffic['bytes_received']:,} bytes"
    assert crossed["encryption"] == "none: all parties ran in one process"
    assert tables["Settings"]["batch_size"] == "32"
    assert "torch" in tables["Versions"]
    assert len(tables["Identity"]["weights of weather"]) == 64


def test_the_card_of_a_host_holds_nothing_about_labels(trained: Trained, tmp_path: Path) -> None:
    tables = read_card(trained.runs["weather"], tmp_path / "model")
    assert "Metrics on held-out rows" not in tables
    assert "top" not in tables["Model"] and "loss" not in tables["Model"]
    assert tables["What crossed the link"]["sent in training (Z)"].endswith(" bytes")


def test_the_card_says_whether_the_link_was_encrypted(tmp_path: Path) -> None:
    trained = run_from_python(tmp_path)
    tables = read_card(trained.runs["airline"], tmp_path / "model")
    crossed = tables["What crossed the link"]
    assert crossed["encryption"] == "none: the party ran with insecure = true"
    assert tables["Model"]["modules"] == "from Python"


def test_the_card_names_the_limits_of_the_model(trained: Trained, tmp_path: Path) -> None:
    export_run(trained.runs["airline"], tmp_path / "model")
    text = " ".join((tmp_path / "model" / "card.md").read_text().split())
    assert "uses the mean of that host's Z" in text
    assert "may reveal" in text


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5))
def test_no_text_breaks_out_of_its_cell(rows: list[tuple[str, str]]) -> None:
    page = MARKDOWN.render(_table("Title", rows))
    assert page.count("<td>") == 2 * len(rows)
    cells = re.findall(r"<td>(.*?)</td>", page, re.DOTALL)
    assert len(cells) == 2 * len(rows)
    for cell, text in zip(cells, (text for row in rows for text in row), strict=True):
        assert "<" not in cell and "\n" not in cell, "a tag, or a second line"
        shown = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
        assert unescape(cell) == shown


@pytest.mark.parametrize(
    "name",
    [
        "a|b",
        "a\\|b",
        "`x`",
        "<b>",
        "&lt;b&gt;",
        "\n| x |",
        "![i](u)",
        "[l](u)",
        "~~s~~",
        "\x1b[31m",
    ],
)
def test_a_name_with_markup_is_shown_as_it_is(name: str) -> None:
    page = MARKDOWN.render(_table("Title", [(name, 1)]))
    (cell, _) = re.findall(r"<td>(.*?)</td>", page, re.DOTALL)
    assert unescape(cell) == " ".join(name.split()).replace("\x1b", "?")
